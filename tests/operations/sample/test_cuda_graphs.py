"""A call captured in a CUDA graph: its replays follow inputs changed in place, and draw by the seeds."""

import pytest
import torch

from calling import assert_same_rows, tokens
from cuda_batches import BATCHES, FILTERED, KINDS, UNKNOWN, B, V, cycle, load, logits_of, metadata_of
from tokendraw import SamplingMetadata, SamplingParams

pytestmark = pytest.mark.gpu


def capture(sampler, logits, metadata):
    """Capture a CUDA graph of a call; return the graph and the outputs filled by its replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            sampler.sample(logits, metadata)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = sampler.sample(logits, metadata)
    return graph, output


def replayed(graph, output):
    graph.replay()
    torch.cuda.synchronize()
    return tokens(output)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_call_follows_its_inputs(kind, mode):
    """Logits and positions are changed in place: seeded and greedy rows then answer like a fresh call, to the bit."""
    sampler, logits, metadata = load(mode), logits_of(3), metadata_of(kind)
    graph, output = capture(sampler, logits, metadata)
    settled = [i for i, p in enumerate(rows_of(kind)) if p.seed is not None or p.temperature == 0]
    for step in (4, 5):
        logits.copy_(logits_of(step))
        metadata.positions.copy_(torch.arange(100 * step, 100 * step + B, device="cuda"))
        expected = sampler.sample(logits, metadata)
        graph.replay()
        torch.cuda.synchronize()
        assert_same_rows(expected, output, rows=settled)
        assert bool(((output.token_ids >= 0) & (output.token_ids < V)).all())
        assert bool(output.valid.all())


def rows_of(kind):
    """Return the request of every row of a batch, its seed included."""
    if kind == "rows of shared slots":
        return [
            p
            for p in [*FILTERED, SamplingParams(seed=8), SamplingParams(seed=9, top_p=0.8)]
            for _ in range(8)
        ]
    if kind == UNKNOWN:
        return [
            SamplingParams(p.temperature, seed=i if i % 2 == 0 else None)
            for i, p in enumerate(cycle(*FILTERED))
        ]
    return BATCHES[kind]


def test_a_captured_call_follows_parameters_that_are_changed_in_place():
    """With unknown facts every row may become greedy, filtered or seeded between replays."""
    sampler, logits, metadata = load(), logits_of(6), metadata_of(UNKNOWN)
    graph, output = capture(sampler, logits, metadata)
    metadata.seeded.fill_(True)
    metadata.seed.copy_(torch.arange(B, device="cuda") * -(2**40))
    for name in ("temperature", "top_k", "top_p", "min_p", "joint", "logprobs"):
        getattr(metadata, name).copy_(getattr(metadata, name).flip(0))
    graph.replay()
    torch.cuda.synchronize()
    assert_same_rows(sampler.sample(logits, metadata), output)
    metadata.temperature.zero_()
    assert replayed(graph, output) == logits.argmax(1).tolist()


@pytest.mark.parametrize("filters", [{}, {"top_k": 1000}, {"top_p": 0.5}], ids=str)
def test_replays_draw_anew_for_unseeded_rows_and_the_same_for_seeded_ones(filters):
    """Flat rows, so that equal tokens in two replays mean equal noise."""
    params = cycle(SamplingParams(**filters), SamplingParams(seed=7, **filters))
    metadata = SamplingMetadata.from_params(params, device="cuda", positions=torch.arange(B, device="cuda"))
    graph, output = capture(load(), torch.zeros(B, V, device="cuda"), metadata)
    replays = [replayed(graph, output) for _ in range(5)]
    assert len({tuple(drawn[1::2]) for drawn in replays}) == 1
    for i in range(5):
        for j in range(i):
            assert sum(a == b for a, b in zip(replays[i][::2], replays[j][::2], strict=True)) <= 2
    assert replays[0][1::2] == tokens(load().sample(torch.zeros(B, V, device="cuda"), metadata))[1::2]


def test_torch_manual_seed_reproduces_replays():
    metadata = SamplingMetadata.from_params(BATCHES["plain"], device="cuda")
    graph, output = capture(load(), torch.zeros(B, V, device="cuda"), metadata)

    def run():
        torch.manual_seed(31)
        return [replayed(graph, output) for _ in range(3)]

    assert run() == run()
