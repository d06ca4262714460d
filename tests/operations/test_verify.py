"""Verifications: rows of drafts, entries of requests or rows, shapes; ``test_conformance.py`` runs the kit."""

import pytest
import torch

import tokendraw
from cuda_batches import NoWait
from tokendraw import BatchFacts, Drafts, Need, SamplingMetadata, SamplingParams, speculative
from tokendraw.calls.rows import by_row
from tokendraw_native.sampler import NativeSampler
from verifying import gaussian, row_metadata

MODES = ["rejection", "coupled", "block"]


# Rows of requests

GOLDEN = {
    # num_drafts: cu_num_logits, row_index, offsets, bonus_rows, target_rows
    (2, 0, 1): ([0, 3, 4, 6], [0, 0, 0, 1, 2, 2], [0, 1, 2, 0, 0, 1], [2, 3, 5], [0, 1, 4]),
    (2, 2): ([0, 3, 6], [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [2, 5], [0, 1, 3, 4]),
    (0, 0, 0): ([0, 1, 2, 3], [0, 1, 2], [0, 0, 0], [0, 1, 2], []),
    (): ([0], [], [], [], []),
}


@pytest.mark.parametrize("num_drafts", GOLDEN, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_requests_are_known_without_a_look_at_the_device(device, num_drafts, dtype):
    offsets, requests, local, bonus, target = GOLDEN[num_drafts]
    counts = torch.tensor(num_drafts, dtype=dtype, device=device)
    first = torch.arange(1000, 1000 + 100 * len(num_drafts), 100, device=device, dtype=dtype)
    with NoWait():
        given = speculative.cu_num_logits(counts)
        found = (
            given,
            speculative.row_index(given, len(requests)),
            speculative.row_positions(given, first, len(requests)),
            speculative.bonus_rows(given),
            speculative.target_rows(given, len(target)),
        )
    positions = [1000 + 100 * request + step for request, step in zip(requests, local, strict=True)]
    assert [tensor.tolist() for tensor in found] == [offsets, requests, positions, bonus, target]
    assert {tensor.dtype for tensor in found} == {torch.int64}
    assert {tensor.device for tensor in found} == {counts.device}


def spread(drafts, metadata=None):
    """The slots and positions of the rows of drafts."""
    if metadata is None:
        metadata = SamplingMetadata.from_params([SamplingParams(seed=5)] * 3, positions=[10, 20, 30])
    found = by_row(metadata, drafts, 6)
    return found.row_index.tolist(), found.positions.tolist()


SPREAD = ([0, 0, 0, 1, 2, 2], [10, 11, 12, 20, 30, 31])


@pytest.mark.parametrize("inference", [False, True])
def test_the_rows_of_drafts_follow_a_change_of_their_offsets_in_place(monkeypatch, inference):
    with torch.inference_mode(inference):
        offsets = torch.tensor([0, 3, 4, 6])
        ids = torch.zeros(3, dtype=torch.int64)
        drafts = Drafts(draft_token_ids=ids, cu_num_logits=offsets, max_drafts=2)
        assert [spread(drafts), spread(drafts)] == [SPREAD, SPREAD]
        offsets.copy_(torch.tensor([0, 1, 4, 6]))
        assert [spread(drafts), spread(drafts)] == [([0, 1, 1, 1, 2, 2], [10, 20, 21, 22, 30, 31])] * 2
    monkeypatch.setattr("tokendraw.calls.rows.is_capturing", lambda: True)
    assert spread(Drafts.from_lists([[1, 2], [], [3]])) == SPREAD


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("apart", [1, 2])
def test_rows_of_requests_with_equally_many_drafts_follow_their_positions_in_place(dtype, apart):
    drafts = Drafts.from_lists([[1], [3], [5]])
    positions = torch.tensor([10, 0, 20, 0, 30, 0] if apart == 2 else [10, 20, 30], dtype=dtype)[::apart]
    metadata = SamplingMetadata(seed=torch.tensor([5, 6, 7]), positions=positions)
    assert spread(drafts, metadata) == ([0, 0, 1, 1, 2, 2], [10, 11, 20, 21, 30, 31])
    positions += 1
    assert spread(drafts, metadata) == ([0, 0, 1, 1, 2, 2], [11, 12, 21, 22, 31, 32])


@pytest.mark.parametrize("mode", MODES)
def test_entries_of_requests_are_spread_over_the_rows_of_their_drafts(mode):
    sampler, drafts = tokendraw.load_sampler("native", device="cpu"), Drafts.from_lists([[1, 2], [], [3]])
    logits, params = torch.from_numpy(gaussian(6)), [SamplingParams(seed=i, top_k=20) for i in range(3)]
    rows = row_metadata(drafts, params, [5, 9, 1])
    assert rows.positions.tolist() == [5, 6, 7, 9, 1, 2]
    expected = NativeSampler(torch.device("cpu"), Need()).verify(logits, drafts, rows, mode=mode)
    slots = [params[1], SamplingParams(), params[2], params[0]]
    for metadata in (
        rows,
        SamplingMetadata.from_params(params, positions=[5, 9, 1]),
        SamplingMetadata.from_params(slots, positions=[5, 9, 1], row_index=torch.tensor([3, 0, 2])),
    ):
        found = sampler.verify(logits, drafts, metadata, mode=mode)
        assert torch.equal(found.token_ids, expected.token_ids)
        assert torch.equal(found.num_accepted, expected.num_accepted)


# What verifications emit


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["draft_logits", "draft_probs", None])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.fast_first
def test_every_shape_is_known_on_the_host(mode, kind, padded):
    """Runs on tensors without data: reading a value fails, as during the capture of a CUDA graph."""

    def empty(*shape, dtype=torch.int64):
        return torch.empty(shape, dtype=dtype, device="meta")

    drafts = Drafts(
        draft_token_ids=empty(3, 4) if padded else empty(7),
        cu_num_logits=empty(4, dtype=torch.int32),
        max_drafts=4,
        **({} if kind is None else {kind: empty(7, 3000, dtype=torch.float32)}),
    )
    columns = {name: empty(3, dtype=torch.float32) for name in ("temperature", "top_p", "min_p")}
    columns |= {name: empty(3, dtype=torch.bool) for name in ("seeded", "joint")}
    columns |= {name: empty(3) for name in ("top_k", "seed", "logprobs")}
    columns |= {name: empty(10) for name in ("positions", "row_index")}
    metadata = SamplingMetadata(**columns, facts=BatchFacts(max_logprobs=5))
    output = NativeSampler(torch.device("meta"), Need()).verify(
        empty(10, 3000, dtype=torch.bfloat16), drafts, metadata, mode=mode
    )
    assert (output.token_ids.shape, output.num_accepted.shape, output.valid.shape) == ((3, 5), (3,), (3,))
    assert (output.logprobs.token_ids.shape, output.logprobs.ranks.shape) == ((3, 5, 6), (3, 5))
    assert (output.log_kept_mass.shape, output.log_kept_mass.dtype) == ((3, 5), torch.float32)
