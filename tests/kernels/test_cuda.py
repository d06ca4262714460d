"""What the kit does not see of triton-gumbel on a CUDA device: a profiler, configurations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_testing import sync_is_an_error
from tokendraw_triton_gumbel import plan

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

V = 4000
FILTERED = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=1)


@pytest.fixture(scope="module")
def sampler():
    return tokendraw.load_sampler("triton-gumbel", device="cuda")


def seeded_metadata(rows, *requests):
    params = [replace(requests[i % len(requests)], seed=i) for i in range(rows)]
    return SamplingMetadata.from_params(params, device="cuda", positions=range(rows))


def test_a_hook_of_a_profiler_is_called_and_changes_nothing(sampler):
    metadata = seeded_metadata(8, FILTERED, SamplingParams(temperature=0.0), SamplingParams(min_p=0.1))
    logits, seen = torch.randn(8, V, device="cuda"), []
    expected = sampler.sample(logits, metadata).token_ids

    def hook(launched):
        seen.append(launched.get()["name"])

    hooks = knobs.runtime.launch_enter_hook
    hooks.add(hook)
    try:
        result = sampler.sample(logits, metadata).token_ids
    finally:
        hooks.remove(hook)
    assert torch.equal(result, expected)
    assert seen[:2] == ["tile_statistics", "draw_rows"]
    assert len(seen) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_configuration_draws_the_same_tokens(sampler, dtype):
    """Log-probabilities may differ in their last bits, since tiles of other sizes add in another order."""
    configurations = [how for name, how in plan.TABLE.items() if name.startswith("cuda")]
    assert len(configurations) > 1
    for rows in (1, 65, 300):
        metadata = seeded_metadata(rows, replace(FILTERED, logprobs=5), SamplingParams())
        logits = torch.randn(rows, V, device="cuda").to(dtype)
        expected = sampler.sample(logits, metadata)
        for configuration in configurations:
            with plan.override(configuration):
                output = sampler.sample(logits, metadata)
            assert torch.equal(output.token_ids, expected.token_ids)
            torch.testing.assert_close(
                output.logprobs.logprobs, expected.logprobs.logprobs, rtol=0, atol=1e-5
            )


def requested(rows, vocab_size, limit):
    """Return slots whose requests have penalties, biases and bad words, and a prompt."""
    rng, slots = np.random.default_rng(4), tokendraw.RequestSlots(rows, limit, vocab_size, device="cuda")
    for slot in range(rows):
        ids = rng.integers(0, vocab_size, 5).tolist()
        params = tokendraw.SamplingParams(
            repetition_penalty=1.5,
            presence_penalty=0.5,
            logit_bias={ids[0]: 2.0},
            bad_words=[ids[:2], ids[2:]],
        )
        slots.add(slot, params, rng.integers(0, vocab_size, limit // 3).tolist())
    return slots


@pytest.mark.parametrize("width", [None, 1, 4])
def test_appended_tokens_leave_the_tables_as_torch_does_in_a_graph_without_a_wait(width):
    rng, vocab_size, limit = np.random.default_rng(4), 5000, 60
    by_launch, by_torch = (requested(32, vocab_size, limit) for _ in range(2))
    tokendraw.load("process_logits", "triton-gumbel", device="cuda").process(
        torch.zeros(32, vocab_size, device="cuda"), by_launch, torch.arange(32, device="cuda"), None
    )
    assert by_launch.appender is not None
    assert by_torch.appender is None
    rows = torch.arange(32, device="cuda", dtype=torch.int32)
    tokens = torch.zeros(32 if width is None else (32, width), dtype=torch.int64, device="cuda")

    def step(slots):
        slots._append(None, rows, tokens)

    with sync_is_an_error():
        by_launch.appender(by_launch.tables, rows, tokens)
        by_torch._histories.append(rows, tokens)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        step(by_launch)
    for _ in range(40):  # the last ones find no room
        tokens.copy_(torch.tensor(rng.choice([-1, vocab_size, *range(50)], tuple(tokens.shape))))
        rows.copy_(torch.tensor(rng.permutation(34)[:32]))
        graph.replay()
        by_torch._histories.append(rows, tokens)
    for name, table in vars(by_torch.tables).items():
        pair = torch.stack((getattr(by_launch.tables, name), table))
        if name == "distinct":  # in any order
            pair = pair.sort(2).values
        assert torch.equal(*pair), name
