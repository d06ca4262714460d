"""Routed rows on a CUDA device: equal to their companion alone, without waiting, and in a CUDA graph."""

from dataclasses import replace

import pytest
import torch

import tokendraw
from calling import assert_same_rows, loaded, select, selected
from fake_candidates import EVERYTHING, PER_ROW
from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.plugin import Capabilities
from tokendraw_testing.kit.device import LONGEST_CALL_SECONDS, seconds_behind_a_busy_device, sync_is_an_error

pytestmark = pytest.mark.gpu

BOTH = SamplingParams(temperature=0.8, top_k=50, top_p=0.9)
SPECIAL = {
    17: replace(BOTH, seed=7),
    99: replace(BOTH, temperature=0.0),
    200: replace(BOTH, seed=9, logprobs=5),
}
ROWS = [17, 99, 200]
B = 256
MODE = "processed_logprobs"


def load(name):
    return tokendraw.load_sampler(name, device="cuda", logprobs_mode=MODE)


def limited():
    """triton-gumbel with the limits of FlashInfer."""
    sampler = load("triton-gumbel")
    poor = Capabilities(filters=PER_ROW, filter_orders=("top_k_first", "joint"))
    backend, native = (selected(each).backend.object for each in (sampler, load("native")))
    need = sampler.resolution.need
    select(
        sampler,
        loaded("triton-gumbel", backend, poor, need=need),
        companion=loaded("native", native, EVERYTHING, need=need),
    )
    return sampler, load("native")


@pytest.fixture(scope="module", params=["limited", "native", "triton-gumbel"])
def pair(request):
    """A sampler with limits, and the companion alone."""
    if request.param == "limited":
        return limited()
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENDRAW_PRIORITY", request.param)
        sampler = load("flashinfer")
    assert sampler.resolution.companion == request.param
    return sampler, load(request.param)


def metadata_of(special=None):
    special = SPECIAL if special is None else special
    params = [special.get(row, BOTH) for row in range(B)]
    return SamplingMetadata.from_params(params, device="cuda", positions=range(B))


def logits_of(seed, size=32001, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(B, size, device="cuda", generator=generator).mul_(3).to(dtype)


def test_a_first_batch_and_its_next_step_are_not_waited_for(pair):
    sampler, logits = pair[0], logits_of(2)
    sampler.sample(logits, metadata_of())
    fresh = metadata_of()
    with sync_is_an_error():
        sampler.sample(logits, fresh)
        sampler.sample(logits, fresh.with_positions(fresh.positions + 1))
    batches = iter([metadata_of() for _ in range(8)])
    seconds, slept = seconds_behind_a_busy_device(lambda: sampler.sample(logits, next(batches)))
    assert slept
    assert seconds < LONGEST_CALL_SECONDS


def test_a_captured_batch_follows_its_inputs_and_draws_anew(pair):
    sampler, companion = pair
    logits, metadata = logits_of(3), metadata_of()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sampler.sample(logits, metadata)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = sampler.sample(logits, metadata)
    for step in range(3):
        logits.copy_(logits_of(10 + step))
        metadata.positions.add_(5)
        metadata.temperature.mul_(1.1)
        expected = companion.sample(logits, metadata)
        graph.replay()
        assert_same_rows(expected, output, rows=torch.tensor(ROWS, device="cuda"))
        first = output.token_ids.clone()
        graph.replay()
        assert torch.equal(first[ROWS], output.token_ids[ROWS])
        assert not torch.equal(first, output.token_ids)
