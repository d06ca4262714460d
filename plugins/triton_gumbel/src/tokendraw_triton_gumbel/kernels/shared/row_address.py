"""Target and drafts as one batch: where the logits of a row lie, and which row of the target it is measured by.

A verification that is given the logits of its drafts draws from the target's rows and, behind them, from the drafts'
rows, in the same launches. Reads two numbers a row of the drafts; nothing where there is no such row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_values import Row


@triton.jit
def row_of(index, drafts, counts):
    """Return (row of the batch, or -1 if there is none; row of the target whose parameters and noise it has).

    :param index: the first are rows of the target, then come as many drafts of each request as one may have at most.
    """
    row = index
    target_row = index
    if drafts.cu_num_logits is not None:
        if index >= counts.target_rows:
            place = index - counts.target_rows
            request = place // counts.max_drafts
            step = place % counts.max_drafts
            asked = request < counts.requests
            first = tl.load(drafts.cu_num_logits + request, mask=asked, other=0).to(tl.int32)
            bonus = tl.load(drafts.cu_num_logits + request + 1, mask=asked, other=0).to(tl.int32) - 1
            own = counts.target_rows + first - request + step
            there = asked & (first + step < bonus) & (own < counts.rows)
            row = tl.where(there, own, -1)
            target_row = tl.where(there, first + step, counts.target_rows - 1)
    return row, target_row


@triton.jit
def row_logits(row, logits, drafts, counts):
    """Return where the logits of a row are: behind the target's rows come those of the drafts, if there are any."""
    base = logits.base + row.to(tl.int64) * logits.row_stride
    if drafts.base is not None:
        if row >= counts.target_rows:
            base = drafts.base + (row - counts.target_rows).to(tl.int64) * drafts.row_stride
    return Row(base, logits.vocab_size)


@triton.jit
def is_inside(ids, row, lead):
    """Return which ids a row holds.

    :param row: the :class:`~.row_values.Row`.
    :param lead: ids of its first tile that are not there, so that nothing is read of them; None: there are none.
    """
    inside = ids < row.vocab_size
    if lead is not None:
        inside = inside & (ids >= lead)
    return inside
