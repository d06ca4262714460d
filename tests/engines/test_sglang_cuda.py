"""The adapter to a stand-in of SGLang on a CUDA device: draws neither wait nor depend on their batch."""

import pytest
import torch

import tokendraw
from sglang_engine import IS_REAL, Request, draw, info_of
from tokendraw_testing.kit.device import require_no_wait
from tokendraw_testing.kit.trial import Trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("sglang"),
    pytest.mark.skipif(IS_REAL, reason="SGLang's own modules are tested on a CPU"),
]
V = 151_936
KINDS = [
    {},
    {"top_k": 50},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    {"temperature": 0.0},
]


@pytest.fixture(scope="module")
def sampler(sglang):
    """The sampler, warmed up by a greedy batch like SGLang's warm-up request."""
    from sglang.srt.layers.sampler import create_sampler

    made = create_sampler()
    draw(made, torch.zeros(1, V, device="cuda"), info_of(Request(temperature=0.0), device="cuda"))
    return made


@pytest.fixture(scope="module")
def logits():
    return torch.randn(64, V, generator=torch.Generator().manual_seed(1)).cuda() * 3


def seeded(rows):
    return [Request(sampling_seed=seed, **KINDS[seed % len(KINDS)]) for seed in range(rows)]


@pytest.mark.parametrize("seeds", [False, True])
@pytest.mark.parametrize("kind", [*range(len(KINDS) - 1), "mixed"])
def test_no_draw_waits_for_the_device(sampler, logits, kind, seeds):
    kinds = [KINDS[kind]] if kind != "mixed" else KINDS
    requests = [Request(**kinds[i % len(kinds)], sampling_seed=i if seeds else None) for i in range(64)]
    info, positions = info_of(*requests, device="cuda"), torch.full((64,), 9, device="cuda")
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    wanted = (False, [0] * 64, [None] * 64, positions)
    require_no_wait(Trial("sample", 0), "SGLang's draw", lambda: sampler(output, info, *wanted))
    assert sampler._draws is not None
    assert torch.equal(output.next_token_logits, logits)
    assert sampler(output, info, *wanted).dtype is torch.int32


def test_a_seeded_row_draws_the_same_alone_and_as_native_does_on_a_cpu(sampler, logits):
    requests, positions = seeded(64), [7 * row for row in range(64)]
    together = draw(sampler, logits, info_of(*requests, device="cuda"), positions)[0].tolist()
    for row in range(0, 64, 9):
        alone, _ = draw(sampler, logits[[row]], info_of(requests[row], device="cuda"), [positions[row]])
        assert alone.tolist() == [together[row]]
    params = [
        tokendraw.SamplingParams(seed=seed, filter_order="joint", **KINDS[seed % len(KINDS)])
        for seed in range(64)
    ]
    metadata = tokendraw.SamplingMetadata.from_params(params, positions=positions)
    native = tokendraw.load_sampler("native", device="cpu").sample(logits.cpu(), metadata).token_ids
    assert sum(a == b for a, b in zip(together, native.tolist(), strict=True)) >= 63  # one near tie at most
