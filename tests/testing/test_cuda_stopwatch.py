"""Every public call except ``warmup`` returns within 20 ms while a CUDA device is busy for 0.2 s."""

from types import SimpleNamespace

import pytest
import torch

import tokendraw
from cuda_batches import FILTERED, B, cycle, logits_of
from tokendraw import Drafts, InvalidInputError, RowKinds, SamplingMetadata, SamplingParams
from tokendraw_testing.kit.device import require_no_wait
from tokendraw_testing.kit.trial import Trial

pytestmark = pytest.mark.gpu

PARAMS = cycle(*FILTERED, SamplingParams(seed=3, logprobs=5))
K = 4
NUMBERS = list(range(B))
LISTS = [[1, 2, 3, 4][: i % (K + 1)] for i in range(B)]


CALLS = {
    "from_params": lambda x: SamplingMetadata.from_params(PARAMS, device="cuda", positions=x.positions),
    "from_params, numbers": lambda x: SamplingMetadata.from_params(
        PARAMS, device="cuda", positions=NUMBERS, row_index=NUMBERS
    ),
    "from_params, tensors of the host": lambda x: SamplingMetadata.from_params(
        PARAMS, device="cuda", positions=torch.arange(B), row_index=torch.arange(B)
    ),
    "with_positions": lambda x: x.metadata.with_positions(x.positions),
    "with_positions, numbers": lambda x: x.metadata.with_positions(NUMBERS),
    "RowKinds.of": lambda x: RowKinds.of(PARAMS),
    "Drafts.from_lists": lambda x: Drafts.from_lists(LISTS, device="cuda"),
    "Drafts.from_counts": lambda x: Drafts.from_counts(x.drafts.draft_token_ids, [len(ids) for ids in LISTS]),
    "sample": lambda x: x.sampler.sample(x.logits, x.metadata),
    "sample of new parameters": lambda x: x.sampler.sample(
        x.logits, SamplingMetadata.from_params(PARAMS, device="cuda", positions=NUMBERS)
    ),
    "draft": lambda x: x.sampler.draft(x.logits, x.metadata),
    "verify": lambda x: x.sampler.verify(x.target, x.drafts, x.metadata),
    "verify of new drafts": lambda x: x.sampler.verify(
        x.target,
        Drafts.from_lists(LISTS, device="cuda"),
        SamplingMetadata.from_params(PARAMS, device="cuda", positions=NUMBERS),
    ),
}


@pytest.fixture(scope="module")
def inputs():
    """A sampler, and tensors of the device."""
    positions, drafts = torch.arange(B, device="cuda"), Drafts.from_lists(LISTS, device="cuda")
    return SimpleNamespace(
        sampler=tokendraw.load_sampler("triton-gumbel", device="cuda"),
        logits=logits_of(3),
        positions=positions,
        metadata=SamplingMetadata.from_params(PARAMS, device="cuda", positions=positions),
        drafts=drafts,
        target=logits_of(4, rows=drafts.num_rows),
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_public_call_returns_while_the_device_is_busy(inputs, name):
    require_no_wait(Trial(name, 0), name, lambda: CALLS[name](inputs))


def test_columns_arrive_behind_a_busy_stream():
    """An upload behind a busy stream keeps its values after the host went on."""
    expected = [SamplingMetadata.from_params(PARAMS, positions=range(i, i + B)) for i in range(20)]
    torch.cuda._sleep(200_000_000)
    result = [
        SamplingMetadata.from_params(PARAMS, device="cuda", positions=range(i, i + B)) for i in range(20)
    ]
    for here, there in zip(expected, result, strict=True):
        for name in [
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "seeded",
            "joint",
            "logprobs",
            "positions",
        ]:
            tensor = getattr(there, name)
            assert tensor.data_ptr() % 16 == 0
            assert torch.equal(tensor.cpu(), getattr(here, name)), name


def test_an_upload_into_a_graph_is_refused():
    graph = torch.cuda.CUDAGraph()
    torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        with pytest.raises(InvalidInputError, match="needs a stream that captures no CUDA graph"):
            SamplingMetadata.from_params(PARAMS, device="cuda", positions=range(B))
        torch.zeros(1, device="cuda")
