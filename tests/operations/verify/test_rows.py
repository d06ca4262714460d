"""Index arithmetic of a verification, by examples small enough to check by eye."""

import pytest
import torch

from tokendraw import Drafts, SamplingMetadata, SamplingParams, speculative
from tokendraw.operations.row_methods import by_row

GOLDEN = {
    # num_drafts: cu_num_logits, row_index, offsets, bonus_rows, target_rows
    (2, 0, 1): ([0, 3, 4, 6], [0, 0, 0, 1, 2, 2], [0, 1, 2, 0, 0, 1], [2, 3, 5], [0, 1, 4]),
    (3, 0, 2, 0, 1): (
        [0, 4, 5, 8, 9, 11],
        [0, 0, 0, 0, 1, 2, 2, 2, 3, 4, 4],
        [0, 1, 2, 3, 0, 0, 1, 2, 0, 0, 1],
        [3, 4, 7, 8, 10],
        [0, 1, 2, 5, 6, 9],
    ),
    (2, 2): ([0, 3, 6], [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [2, 5], [0, 1, 3, 4]),
    (0, 0, 0): ([0, 1, 2, 3], [0, 1, 2], [0, 0, 0], [0, 1, 2], []),
    (4,): ([0, 5], [0] * 5, [0, 1, 2, 3, 4], [4], [0, 1, 2, 3]),
    (): ([0], [], [], [], []),
}


@pytest.mark.parametrize("num_drafts", GOLDEN, ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_requests(device, num_drafts, dtype):
    offsets, requests, local, bonus, target = GOLDEN[num_drafts]
    cu_num_logits = speculative.cu_num_logits(torch.tensor(num_drafts, dtype=dtype, device=device))
    assert cu_num_logits.tolist() == offsets
    first = torch.arange(1000, 1000 + 100 * len(num_drafts), 100, device=device, dtype=dtype)
    for given in (cu_num_logits, cu_num_logits.to(dtype)):
        found = {
            "row_index": speculative.row_index(given, len(requests)),
            "row_positions": speculative.row_positions(given, first, len(requests)),
            "bonus_rows": speculative.bonus_rows(given),
            "target_rows": speculative.target_rows(given, len(target)),
        }
        assert {name: tensor.tolist() for name, tensor in found.items()} == {
            "row_index": requests,
            "row_positions": [1000 + 100 * r + step for r, step in zip(requests, local, strict=True)],
            "bonus_rows": bonus,
            "target_rows": target,
        }
        assert {tensor.dtype for tensor in found.values()} == {torch.int64}
        assert {tensor.device for tensor in found.values()} == {given.device}


def test_rows_beyond_the_last_request_are_given_to_it():
    cu_num_logits = torch.tensor([0, 3, 4])
    assert speculative.row_index(cu_num_logits, 7).tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert speculative.target_rows(cu_num_logits, 4).tolist() == [0, 1, 3, 4]


def test_no_size_is_read_from_the_device():
    """Runs on tensors without data, which have no values to read."""
    counts, first = torch.empty(3, dtype=torch.int32, device="meta"), torch.empty(3, device="meta").long()
    cu_num_logits = speculative.cu_num_logits(counts)
    assert cu_num_logits.shape == (4,)
    assert speculative.row_index(cu_num_logits, 8).shape == (8,)
    assert speculative.row_positions(cu_num_logits, first, 8).shape == (8,)
    assert speculative.bonus_rows(cu_num_logits).shape == (3,)
    assert speculative.target_rows(cu_num_logits, 5).shape == (5,)


def spread(drafts, rows=6):
    metadata = SamplingMetadata.from_params(
        [SamplingParams(seed=k) for k in (5, 6, 7)], positions=[10, 20, 30]
    )
    found = by_row(metadata, drafts, rows)
    return found.row_index.tolist(), found.positions.tolist()


SPREAD = ([0, 0, 0, 1, 2, 2], [10, 11, 12, 20, 30, 31])
CHANGED = ([0, 1, 1, 1, 2, 2], [10, 20, 21, 22, 30, 31])


@pytest.mark.parametrize("inference", [False, True])
def test_the_rows_of_drafts_follow_a_change_of_their_offsets_in_place(inference):
    with torch.inference_mode(inference):
        offsets = torch.tensor([0, 3, 4, 6])
        drafts = Drafts(
            draft_token_ids=torch.zeros(3, dtype=torch.int64), cu_num_logits=offsets, max_drafts=2
        )
        assert [spread(drafts), spread(drafts)] == [SPREAD, SPREAD]
        offsets.copy_(torch.tensor([0, 1, 4, 6]))
        assert [spread(drafts), spread(drafts)] == [CHANGED, CHANGED]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("apart", [1, 2])
def test_rows_of_requests_with_equally_many_drafts_follow_their_positions_in_place(dtype, apart):
    drafts = Drafts.from_lists([[1, 2], [3, 4], [5, 6]])
    positions = torch.tensor([10, 0, 20, 0, 30, 0] if apart == 2 else [10, 20, 30], dtype=dtype)[::apart]
    metadata = SamplingMetadata(seed=torch.tensor([5, 6, 7]), positions=positions)
    found = by_row(metadata, drafts, 9)
    assert found.row_index.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (found.positions.tolist(), found.positions.dtype) == (
        [10, 11, 12, 20, 21, 22, 30, 31, 32],
        torch.int64,
    )
    positions += 1
    assert by_row(metadata, drafts, 9).positions.tolist() == [11, 12, 13, 21, 22, 23, 31, 32, 33]


def test_the_rows_of_drafts_are_computed_once_but_in_a_graph(monkeypatch):
    drafts, counted = Drafts.from_lists([[1, 2], [], [3]]), []
    compute = speculative.rows_of_requests
    monkeypatch.setattr(speculative, "rows_of_requests", lambda *given: counted.append(1) or compute(*given))
    assert [spread(drafts), spread(drafts)] == [SPREAD, SPREAD]
    assert len(counted) == 1
    monkeypatch.setattr("tokendraw.operations.row_methods.is_capturing", lambda: True)
    assert [spread(drafts), spread(drafts)] == [SPREAD, SPREAD]
    assert len(counted) == 3


def test_requests_in_slots_keep_their_slots():
    """An entry a request, in slots other than its index in the batch."""
    drafts = Drafts.from_lists([[1, 2], [], [3]])
    slots = torch.tensor([7, 0, 4], dtype=torch.int32)
    metadata = SamplingMetadata(top_k=torch.arange(8), row_index=slots, positions=torch.tensor([10, 20, 30]))
    found = by_row(metadata, drafts, 6)
    assert found.per_row("top_k").tolist() == [7, 7, 7, 0, 4, 4]
    assert found.positions.tolist() == [10, 11, 12, 20, 30, 31]
