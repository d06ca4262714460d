"""Ranks as threads: results of collectives, execution in rank order, and errors of diverging ranks."""

import time

import pytest
import torch

from tokendraw.vocab_parallel import Transport
from tokendraw_testing.kit.trial import Violation
from tokendraw_testing.shards.splits import splits
from tokendraw_testing.shards.thread_ranks import CollectiveError, on_ranks


def parted(size, work, **settings):
    with pytest.raises(CollectiveError) as caught:
        on_ranks(size, work, **settings)
    return str(caught.value)


def test_collectives_return_the_same_on_every_rank():
    def work(rank):
        assert isinstance(rank, Transport)
        total, first = torch.tensor([rank.rank, 1]), torch.tensor([10 + rank.rank])
        every = rank.all_gather(total)
        rank.all_sum(total)
        rank.broadcast_from_first(first)()
        return every.tolist(), total.tolist(), first.tolist(), rank.gather_objects(str(rank.rank))

    assert on_ranks(3, work) == [([[0, 1], [1, 1], [2, 1]], [3, 3], [10], ["0", "1", "2"])] * 3


def test_the_result_of_a_broadcast_arrives_with_the_wait():
    def work(rank):
        tensor = torch.tensor([rank.rank])
        wait = rank.broadcast_from_first(tensor)
        before = tensor.item()
        wait()
        return before, tensor.item()

    assert on_ranks(2, work) == [(0, 0), (1, 0)]


def test_one_rank_computes_at_a_time_in_rank_order():
    seen = []

    def work(rank):
        for step in range(3):
            seen.append((step, rank.rank))
            rank.gather_objects(None)
        return torch.is_grad_enabled()

    assert on_ranks(4, work) == [False] * 4
    assert seen == [(step, rank) for step in range(3) for rank in range(4)]


def test_a_rank_that_leaves_out_a_collective_is_named():
    def work(rank):
        rank.gather_objects(None)
        return None if rank.rank == 1 else rank.all_gather(torch.zeros(2))

    assert parted(3, work) == (
        "all ranks need to make the same collectives, found rank 0 at all_gather of [2] float32 and rank 1 done after "
        "1 collectives"
    )


def test_other_shapes_and_dtypes_part_the_ranks():
    dtypes = (torch.float32, torch.int32)
    assert parted(2, lambda rank: rank.all_gather(torch.zeros(2, dtype=dtypes[rank.rank]))) == (
        "all ranks need to make the same collectives, found rank 0 at all_gather of [2] float32 and rank 1 at "
        "all_gather of [2] int32 after 0 collectives"
    )


def test_an_exception_of_a_rank_is_raised_instead_of_a_missing_collective():
    def work(rank):
        if rank.rank == 2:
            raise ValueError("of its own")
        rank.all_gather(torch.zeros(2))

    with pytest.raises(ValueError, match="of its own"):
        on_ranks(3, work)


def test_a_rank_that_does_not_come_back_is_waited_for_so_long():
    assert parted(2, lambda rank: time.sleep(0.5 * rank.rank), seconds=0.05) == (
        "rank 1 needs to return or to make a collective, found it at work after 0.05 s"
    )


def test_tensors_need_to_be_contiguous_as_for_nccl():
    with pytest.raises(Violation) as caught:
        on_ranks(2, lambda rank: rank.all_gather(torch.zeros(2, 3).T))
    assert str(caught.value) == "all_gather of [3, 2] float32 needs a contiguous tensor, found strides [1, 3]"


@pytest.mark.parametrize("size", [1, 2, 3, 33, 1024, 1025, 5003, 65_543])
def test_every_split_holds_all_ids_in_order_and_nothing_behind_a_rank_can_be_read_unseen(size):
    logits = torch.randn(2, size)
    for split in splits(size):
        parts = split.of(logits)
        assert 2 <= len(parts) == split.size <= 5
        assert torch.equal(torch.cat(parts, 1), logits)
        assert all(part.stride(0) > part.shape[1] for part in parts)


def test_splits_cut_tiles_and_leave_ranks_empty():
    assert [str(split) for split in splits(5003)] == [
        "two halves (2502 + 2501)",
        "odd sizes (1667 + 1668 + 1668)",
        "a tile over three ranks and more (2252 + 205 + 410 + 2136)",
        "empty ranks (0 + 3335 + 0 + 1668 + 0)",
        "one id on a rank (5002 + 1)",
        "whole tiles (1024 + 2048 + 1931)",
    ]
