"""The hazards of page plans that any device shows, each a function of a planner and a device.

A planner has a method ``plan``: what ``tokendraw.load("plan_paged_kv")`` returns, or
:func:`paged_kv_model.planner_of` around an object of one's own. A hazard that is met raises AssertionError.
"""

import torch

from cuda_batches import NoWait
from paged_kv_model import (
    SENTINEL,
    ints,
    lists,
    model,
    require_equal,
    require_plan,
    sentinels,
    table_of,
    tensors,
)
from tokendraw import PagedKVPlan, paged_kv

_LENGTHS = [5, 0, 16, 17, 1, 64]
_COLUMNS, _PAGE = 4, 16


def stale_buffers(planner, device):
    """Buffers full of a sentinel before every call: nothing of it is left, however few pages the next call has."""
    out = sentinels(6, _COLUMNS, device)
    lone = sentinels(6, _COLUMNS, device, page_indices=False)
    for step, lengths in enumerate(([64] * 6, _LENGTHS, [0, 0, 0, 0, 0, 1], [0] * 6)):
        for buffer in (*tensors(out), *tensors(lone)):
            buffer.fill_(SENTINEL)
        table = table_of(6, _COLUMNS, step)
        assert require_plan(planner, lengths, table, _PAGE, device, out=out) is out
        assert require_plan(planner, lengths, table, _PAGE, device, out=lone, page_indices=False) is lone


def segment_starts_at_zero(planner, device):
    """The plan of the prefills starts at 0, whatever the decodes before them took."""
    table = table_of(6, _COLUMNS)
    seq_lens, block_table = ints(_LENGTHS, device), ints(table, device)
    for first in range(7):
        plan = planner.plan(seq_lens[first:], block_table[first:], _PAGE)
        assert plan.page_indptr[:1].tolist() == [0]
        require_equal(lists(plan), model(_LENGTHS[first:], table[first:], _PAGE), f"from {first}")


def segments_keep_apart(planner, device):
    """The plan of one segment leaves the buffers of the other, and what lies around its own, as they are."""
    table = table_of(6, _COLUMNS)
    seq_lens, block_table = ints(_LENGTHS, device), ints(table, device)
    memory = torch.full((400,), SENTINEL, dtype=torch.int32, device=device)
    starts = {"page_indptr": 32, "last_page_len": 64, "page_indices": 96}

    def carved(rows, start):
        sizes = {"page_indptr": rows + 1, "last_page_len": rows, "page_indices": rows * _COLUMNS}
        return PagedKVPlan(
            **{name: memory[start + at : start + at + sizes[name]] for name, at in starts.items()}
        )

    decodes, prefills = carved(2, 0), carved(4, 200)
    needed = [SENTINEL] * 400
    for segment, out, start in ((slice(2, 6), prefills, 200), (slice(0, 2), decodes, 0)):
        planner.plan(seq_lens[segment], block_table[segment], _PAGE, out=out)
        for at, values in zip(starts.values(), model(_LENGTHS[segment], table[segment], _PAGE), strict=True):
            needed[start + at : start + at + len(values)] = values
        assert memory.tolist() == needed
    first = planner.plan(seq_lens[:2], block_table[:2], _PAGE)
    kept = lists(first)
    planner.plan(seq_lens[2:], block_table[2:], _PAGE)
    require_equal(lists(first), kept, "buffers of a call without 'out'")


def no_wait_of_torch(planner, device):
    """No operation of torch has to know a value on the host: neither the plan nor what goes with it."""
    table, seq_lens = ints(table_of(6, _COLUMNS), device), ints(_LENGTHS, device)
    out = sentinels(6, _COLUMNS, device)
    planner.plan(seq_lens, table, _PAGE)
    with NoWait():
        planner.plan(seq_lens, table, _PAGE)
        planner.plan(seq_lens, table, _PAGE, page_indices=False)
        planner.plan(seq_lens, table, _PAGE, out=out)
        paged_kv.advance(seq_lens, seq_lens, seq_lens, seq_lens, seq_lens)
        paged_kv.segment_query_indptr(seq_lens, 2)


def int32_throughout(planner, device):
    """Plans, lengths and segments are int32, also where the sums come close to its limit."""
    plan = planner.plan(ints(_LENGTHS, device), ints(table_of(6, _COLUMNS), device), _PAGE)
    seq_lens = ints(_LENGTHS, device)
    results = [
        *tensors(plan),
        *paged_kv.advance(seq_lens, seq_lens, seq_lens, seq_lens, seq_lens),
        paged_kv.segment_query_indptr(seq_lens, 2),
    ]
    assert {tensor.dtype for tensor in results} == {torch.int32}
    assert {tensor.device for tensor in results} == {seq_lens.device}
    largest = 2**31 - 1
    for page_size in (2**30, 2**30 + 1, largest - 1, largest):
        require_plan(planner, [largest, largest - 1, 2**30, 1, 0], table_of(5, 3), page_size, device)


def edges(planner, device):
    """No request, no token, one column, lengths at a page's edge and out of range, page sizes of one."""
    empty = torch.empty(0, _COLUMNS, dtype=torch.int32, device=device)
    require_plan(planner, [], empty, _PAGE, device)
    require_plan(planner, [], empty, _PAGE, device, out=sentinels(0, _COLUMNS, device))
    require_plan(planner, [3, 0], empty.view(_COLUMNS, 0)[:2], _PAGE, device)
    require_plan(planner, [0, 0, 7, 0, 0, 33, 0], table_of(7, _COLUMNS), _PAGE, device)
    require_plan(planner, [0, 1, 15, 16, 17, 32, 33], table_of(7, 1), _PAGE, device)
    for page_size in (1, 2, 3, 16, 100):
        near = [max(page_size * n + off, 0) for n in range(5) for off in (-1, 0, 1)]
        require_plan(planner, near, table_of(len(near), _COLUMNS), page_size, device, pad=2**31 - 1)
    beyond = [-1, -(2**31), 2**31 - 1, 2**31 - 16, 65, 64, 63]
    require_plan(planner, beyond, table_of(7, _COLUMNS), _PAGE, device, pad=-(2**31))
    require_plan(planner, [17], table_of(1, _COLUMNS), _PAGE, device, pad=0)
    rows = [i * 37 % 1100 for i in range(700)]  # more than one block of any kernel's running sum
    require_plan(planner, rows, table_of(700, 67), _PAGE, device)


def strided_tables(planner, device):
    """Rows of a wider table, every other row, a column in, and one row for all."""
    wide = ints(table_of(12, 9), device)
    kept = wide.clone()
    for table in (
        wide[:6, :_COLUMNS],
        wide[::2, 2:7],
        wide[6:, 8:],
        wide[3:4, :5].expand(6, 5),
        wide[:6, :1],
    ):
        require_plan(planner, _LENGTHS, table, _PAGE, device)
        require_plan(planner, _LENGTHS, table, _PAGE, device, out=sentinels(6, table.shape[1], device))
    assert torch.equal(wide, kept)


def inputs_stay(planner, device):
    """Lengths, also those out of range, and block table stay as they are."""
    seq_lens, table = ints([-5, 2**31 - 1, 7], device), ints(table_of(3, _COLUMNS), device)
    before = seq_lens.tolist(), table.tolist()
    planner.plan(seq_lens, table, _PAGE)
    assert (seq_lens.tolist(), table.tolist()) == before


HAZARDS = {
    "1 stale buffers": stale_buffers,
    "2 the prefill segment starts at 0": segment_starts_at_zero,
    "3 one segment leaves the other's buffers alone": segments_keep_apart,
    "4 no wait": no_wait_of_torch,
    "5 int32 throughout": int32_throughout,
    "6 edges": edges,
    "6 strided tables": strided_tables,
    "inputs stay as they are": inputs_stay,
}
"""Hazards by their number in the specification; 7 and 8 are in :mod:`paged_kv_loop` and :mod:`paged_kv_cuda`."""
