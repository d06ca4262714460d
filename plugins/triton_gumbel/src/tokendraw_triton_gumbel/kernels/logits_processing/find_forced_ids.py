"""The ids that spent thinking budgets force. A program a row, before ``process_logits``.

Reads the history backwards until it meets the newest start and the newest end, and writes one id.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.argument_groups import UNSPECIALIZED
from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import THINKING, load_row
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import token_before

_PLACES = tl.constexpr(128)
"""Tokens of a history that are looked at together."""


@triton.jit
def _tokens_since(mark, length, size, row, history, drafts):
    """Return the number of tokens behind the newest occurrence of a sequence; ``size`` without one."""
    found = size
    start = size * 0
    while (start < size) & (found == size):
        back = start + tl.arange(0, _PLACES)
        is_last = (back < size).to(tl.int32)
        for step in range(length):
            expected = tl.load(mark + length - 1 - step)
            is_last &= (token_before(back + step, size, row, history, drafts) == expected).to(tl.int32)
        found = tl.minimum(found, tl.min(tl.where(is_last > 0, back, size), 0))
        start += _PLACES
    return found


@triton.jit
def _num_begun(mark, most, size, row, history, drafts):
    """Return how many ids of a sequence, at most ``most``, end the tokens of a row."""
    count = size * 0
    for length in range(1, most + 1):
        is_begun = size * 0 + 1
        for index in range(length):
            token = token_before(length - 1 - index, size, row, history, drafts)
            is_begun &= (token == tl.load(mark + index)).to(tl.int32)
        count = tl.where(is_begun > 0, length, count)
    return count


@triton.jit(**UNSPECIALIZED)
def find_forced_ids(rows, logits, history, drafts, stops, thinking, forced_ids, config: tl.constexpr):
    """Each program writes the forced id of a row, -1 where there is none. Grid (rows).

    :param logits: :class:`~.shared.argument_groups.Logits`, which are not read.
    :param thinking: :class:`~.argument_groups.Thinking`; this module defines all groups except the logits'.
    :param forced_ids: [rows] int32.
    :param config: :class:`~.shared.configs.ProcessConfig`.
    """
    row_number = tl.program_id(0)
    row = load_row(row_number, logits, rows, drafts, history, stops, THINKING, config)
    budget = tl.load(thinking.budget + row.slot, mask=row.has_request, other=-1)
    forced = row_number * 0 - 1
    if budget >= 0:
        size = row.num_tokens + row.step
        start = thinking.start + row.slot * thinking.room
        end = thinking.end + row.slot * thinking.room
        num_end = tl.load(thinking.num_end + row.slot)
        num_start = tl.load(thinking.num_start + row.slot)
        since_start = _tokens_since(start, num_start, size, row, history, drafts)
        since_end = _tokens_since(end, num_end, size, row, history, drafts)
        if (since_start < since_end) & (tl.minimum(since_start, row.num_output) >= budget):
            most = tl.minimum(num_end - 1, since_start)
            forced = tl.load(end + _num_begun(end, most, size, row, history, drafts))
    tl.store(forced_ids + row_number, forced)
