"""Numbers the rows of target and drafts as one batch: the address of a row, and the target row with its parameters.

A verification with the logits of its drafts draws from the target's rows and, behind them, from the drafts' rows, in
the same launches. Reads two numbers a row of the drafts; nothing without such rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress


@triton.jit
def row_of(index, drafts, counts):
    """Return (row of the batch, or -1 for none; target row with its parameters and noise).

    :param index: numbers the rows of the target, then ``max_drafts`` rows of drafts for each request.
    """
    row = index
    target_row = index
    if drafts.cu_num_logits is not None:
        if index >= counts.target_rows:
            draft_index = index - counts.target_rows
            request = draft_index // counts.max_drafts
            step = draft_index % counts.max_drafts
            is_request = request < counts.requests
            first_row = tl.load(drafts.cu_num_logits + request, mask=is_request, other=0).to(tl.int32)
            bonus = tl.load(drafts.cu_num_logits + request + 1, mask=is_request, other=0).to(tl.int32) - 1
            draft_row = counts.target_rows + first_row - request + step
            is_draft = is_request & (first_row + step < bonus) & (draft_row < counts.rows)
            row = tl.where(is_draft, draft_row, -1)
            target_row = tl.where(is_draft, first_row + step, counts.target_rows - 1)
    return row, target_row


@triton.jit
def row_logits(row, logits, drafts, counts):
    """Return the :class:`.RowAddress` of a row: rows of the drafts follow the target's."""
    base = logits.base + row.to(tl.int64) * logits.row_stride
    if drafts.base is not None:
        if row >= counts.target_rows:
            base = drafts.base + (row - counts.target_rows).to(tl.int64) * drafts.row_stride
    return RowAddress(base, logits.vocab_size)
