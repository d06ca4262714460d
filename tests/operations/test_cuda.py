"""native on a CUDA device, where the kit does not look: great tensors, graphs of changing parameters, refusals."""

import pytest
import torch

from calling import assert_same_rows, call, tokens
from tokendraw import BatchFacts, SamplingMetadata, SamplingParams, load_sampler

pytestmark = pytest.mark.gpu

B, V = 64, 32_000


@pytest.fixture(scope="module")
def sampler():
    return load_sampler("native", device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9, "logprobs": 2}], ids=str
)
def test_more_than_2_to_the_31_logits_work(sampler, dtype, settings):
    """The last rows lie beyond 32-bit indices, and draw the same tokens as alone."""
    size = 128_256
    rows = 2**31 // size + 16
    if torch.cuda.get_device_properties(0).total_memory < 60 << 30:
        pytest.skip("needs 60 GiB of device memory")
    generator = torch.Generator("cuda").manual_seed(8)
    few = (3 * torch.randn(32, size, device="cuda", generator=generator)).to(dtype)
    logits = torch.empty(rows, size, dtype=dtype, device="cuda")
    logits[:-32] = few[:1]
    logits[-32:] = few
    params = [SamplingParams(seed=9, **settings)] * (rows - 1) + [SamplingParams(temperature=0.0)]
    found = call(sampler, logits, params, range(rows))
    expected = call(sampler, few, params[-32:], range(rows - 32, rows))
    assert found.token_ids[-32:].tolist() == tokens(expected)
    assert found.valid.all()
    assert len(set(found.token_ids[:1000].tolist())) > 5
    if "logprobs" in settings:
        assert torch.equal(found.logprobs.token_ids[-32:], expected.logprobs.token_ids)
        torch.testing.assert_close(
            found.logprobs.logprobs[-32:], expected.logprobs.logprobs, rtol=0, atol=1e-5
        )
    del logits, found
    torch.cuda.empty_cache()


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


def test_a_captured_call_follows_parameters_that_are_changed_in_place(sampler):
    """With unknown facts every row may become greedy, filtered or seeded between replays."""
    logits = 3 * torch.randn(B, V, device="cuda", generator=torch.Generator("cuda").manual_seed(6))
    rows = torch.arange(B, device="cuda")
    metadata = SamplingMetadata(
        temperature=torch.where(rows % 6 == 5, 0.0, 0.5 + rows / B),
        top_k=torch.where(rows % 2 == 0, 50, 0),
        top_p=torch.where(rows % 3 == 0, 0.9, 1.0),
        min_p=torch.where(rows % 4 == 1, 0.02, 0.0),
        seed=rows.clone(),
        seeded=rows % 2 == 0,
        positions=rows.clone(),
        joint=rows % 5 == 0,
        logprobs=torch.full((B,), 3, device="cuda"),
        facts=BatchFacts(max_logprobs=5),
    )
    graph, output = capture(sampler, logits, metadata)
    metadata.seeded.fill_(True)
    metadata.seed.copy_(rows * -(2**40))
    for name in ("temperature", "top_k", "top_p", "min_p", "joint", "logprobs"):
        getattr(metadata, name).copy_(getattr(metadata, name).flip(0))
    graph.replay()
    torch.cuda.synchronize()
    assert_same_rows(sampler.sample(logits, metadata), output)
    metadata.temperature.zero_()
    assert replayed(graph, output) == logits.argmax(1).tolist()
