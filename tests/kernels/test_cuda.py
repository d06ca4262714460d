"""What the kit does not see of triton-gumbel on a CUDA device: a profiler, configurations."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams
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
