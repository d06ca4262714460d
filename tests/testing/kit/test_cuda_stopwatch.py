"""Every public call except ``warmup`` returns within 20 ms while a CUDA device is busy for 0.2 s."""

import pytest
import torch

import tokendraw
from cuda_batches import FILTERED, B, cycle, logits_of
from tokendraw import Drafts, InvalidInputError, RowKinds, SamplingMetadata, SamplingParams
from tokendraw_testing.kit.device import LONGEST_CALL_SECONDS, seconds_behind_a_busy_device, sync_is_an_error

pytestmark = pytest.mark.gpu

PARAMS = cycle(*FILTERED, SamplingParams(seed=3, logprobs=5))
K = 4
LISTS = [[1, 2, 3, 4][: i % (K + 1)] for i in range(B)]


def prepared():
    """Public calls by name, on tensors of the device."""
    device = torch.device("cuda")
    sampler = tokendraw.load_sampler("triton-gumbel", device="cuda")
    logits, positions = logits_of(3), torch.arange(B, device=device)
    metadata = SamplingMetadata.from_params(PARAMS, device=device, positions=positions)
    numbers, on_host = list(range(B)), torch.arange(B)
    drafts = Drafts.from_lists(LISTS, device=device)
    target = logits_of(4, rows=drafts.num_rows)
    counts = [len(ids) for ids in LISTS]
    return {
        "from_params": lambda: SamplingMetadata.from_params(PARAMS, device=device, positions=positions),
        "from_params, numbers": lambda: SamplingMetadata.from_params(
            PARAMS, device=device, positions=numbers, row_index=numbers
        ),
        "from_params, tensors of the host": lambda: SamplingMetadata.from_params(
            PARAMS, device=device, positions=on_host, row_index=on_host
        ),
        "with_positions": lambda: metadata.with_positions(positions),
        "with_positions, numbers": lambda: metadata.with_positions(numbers),
        "RowKinds.of": lambda: RowKinds.of(PARAMS),
        "Drafts.from_lists": lambda: Drafts.from_lists(LISTS, device=device),
        "Drafts.from_counts": lambda: Drafts.from_counts(drafts.draft_token_ids, counts),
        "sample": lambda: sampler.sample(logits, metadata),
        "sample of new parameters": lambda: sampler.sample(
            logits, SamplingMetadata.from_params(PARAMS, device=device, positions=numbers)
        ),
        "draft": lambda: sampler.draft(logits, metadata),
        "verify": lambda: sampler.verify(target, drafts, metadata),
        "verify of new drafts": lambda: sampler.verify(
            target,
            Drafts.from_lists(LISTS, device=device),
            SamplingMetadata.from_params(PARAMS, device=device, positions=numbers),
        ),
    }


@pytest.fixture(scope="module")
def calls():
    return prepared()


NAMES = (
    "from_params",
    "from_params, numbers",
    "from_params, tensors of the host",
    "with_positions",
    "with_positions, numbers",
    "RowKinds.of",
    "Drafts.from_lists",
    "Drafts.from_counts",
    "sample",
    "sample of new parameters",
    "draft",
    "verify",
    "verify of new drafts",
)


def test_every_call_has_its_name(calls):
    assert tuple(calls) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_call_returns_while_the_device_is_busy(calls, name):
    seconds, slept = seconds_behind_a_busy_device(calls[name])
    assert slept
    assert seconds < LONGEST_CALL_SECONDS


@pytest.mark.parametrize("name", NAMES)
def test_a_public_call_makes_no_synchronizing_cuda_call(calls, name):
    calls[name]()
    with sync_is_an_error():
        calls[name]()


def test_columns_arrive_behind_a_busy_stream():
    """An upload behind a busy stream keeps its values after the host went on."""
    expected = [SamplingMetadata.from_params(PARAMS, positions=range(i, i + B)) for i in range(20)]
    torch.cuda._sleep(200_000_000)
    result = [
        SamplingMetadata.from_params(PARAMS, device="cuda", positions=range(i, i + B)) for i in range(20)
    ]
    for here, there in zip(expected, result, strict=True):
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "seeded",
            "joint",
            "logprobs",
            "positions",
        ):
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
