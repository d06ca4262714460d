"""Target and drafts as one batch: where the logits of a row lie, and which row of the target it is measured by.

A verification that is given the logits of its drafts draws from the target's rows and, behind them, from the drafts'
rows, in the same launches. Reads two numbers a row of the drafts; nothing where there is no such row.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_of(index, rows, cu_num_logits, split, width, requests):
    """(Row of the batch, or -1 if there is none; row of the target that its parameters and its noise are those of).

    :param index: the first ``split`` are rows of the target, then come ``width`` drafts of each of the requests, more
        than it may have.
    :param rows: of the batch.
    :param cu_num_logits: [requests + 1]; None: all rows are the target's.
    """
    row = index
    beside = index
    if cu_num_logits is not None:
        place = tl.maximum(index - split, 0)
        request = place // width
        step = place % width
        asked = (index >= split) & (request < requests)
        first = tl.load(cu_num_logits + request, mask=asked, other=0).to(tl.int32)
        bonus = tl.load(cu_num_logits + request + 1, mask=asked, other=0).to(tl.int32) - 1
        own = split + first - request + step
        there = asked & (first + step < bonus) & (own < rows)
        row = tl.where(index < split, index, tl.where(there, own, -1))
        beside = tl.where(there, first + step, tl.minimum(index, split - 1))
    return row, beside


@triton.jit
def base_of(row, logits, row_stride, drafts, draft_stride, split):
    """Where the logits of a row begin: from row ``split`` on they are those of ``drafts``, if there are any."""
    base = logits + row.to(tl.int64) * row_stride
    if drafts is not None:
        if row >= split:
            base = drafts + (row - split).to(tl.int64) * draft_stride
    return base
