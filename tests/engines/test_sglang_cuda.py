"""The adapter to a stand-in of SGLang on a CUDA device: no draw waits."""

import pytest
import torch

from sglang_engine import IS_REAL, Request, draw, info_of, made_sampler
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
    made = made_sampler()
    draw(made, torch.zeros(1, V, device="cuda"), info_of(Request(temperature=0.0), device="cuda"))
    return made


@pytest.mark.parametrize("seeds", [False, True])
@pytest.mark.parametrize("kind", [*range(len(KINDS) - 1), "mixed"])
def test_no_draw_waits_for_the_device(sampler, kind, seeds):
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    kinds = [KINDS[kind]] if kind != "mixed" else KINDS
    requests = [Request(**kinds[i % len(kinds)], sampling_seed=i if seeds else None) for i in range(64)]
    info, positions = info_of(*requests, device="cuda"), torch.full((64,), 9, device="cuda")
    logits = torch.randn(64, V, device="cuda")
    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    wanted = (False, [0] * 64, [None] * 64, positions)
    require_no_wait(Trial("sample", 0), "SGLang's draw", lambda: sampler(output, info, *wanted))
    assert sampler._draws is not None
    assert torch.equal(output.next_token_logits, logits)
    assert sampler(output, info, *wanted).dtype is torch.int32
