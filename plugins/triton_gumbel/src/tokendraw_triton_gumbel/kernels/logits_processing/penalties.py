"""Repetition, frequency and presence penalties of a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import (
    DRY,
    IN_PROMPT,
    LAST_N,
    OUTPUT_SHIFT,
    PENALTIES,
)
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import count_drafts


class RowPenalties(NamedTuple):
    """The penalties of a row, float32."""

    repetition: Any
    frequency: Any
    presence: Any
    last_n: Any
    """int32: number of tokens that are counted; negative: all."""


@triton.jit
def load_penalties(slot, penalties, flags):
    """Return the :class:`RowPenalties` of a request."""
    is_any = (flags & PENALTIES) != 0
    return RowPenalties(
        tl.load(penalties.repetition + slot, mask=is_any, other=1.0),
        tl.load(penalties.frequency + slot, mask=is_any, other=0.0),
        tl.load(penalties.presence + slot, mask=is_any, other=0.0),
        tl.load(penalties.last_n + slot, mask=(flags & LAST_N) != 0, other=-1),
    )


@triton.jit
def walks_table(penalties, flags):
    """Return whether the edited ids of a row all stand in its table, but for lists and masks.

    That is so with a window of penalties, and with DRY without penalties.
    """
    is_walked = flags < 0
    if flags & (LAST_N | DRY) != 0:
        is_asked = tl.where(penalties.repetition != 1.0, 1, 0)
        is_asked = tl.where(penalties.frequency != 0.0, 1, is_asked)
        is_asked = tl.where(penalties.presence != 0.0, 1, is_asked)
        is_walked = (penalties.last_n >= 0) | (is_asked == 0)
    return is_walked


@triton.jit
def count_ids(ids, entry, counts, row, penalties, table, drafts, flags, config):
    """Return (how often each id of a block [n] is in the output, whether it is in prompt or output).

    Where the penalties count the last tokens alone, both are of these.

    :param entry: of each id in ``table``; -1 or beyond the table: none.
    """
    times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, row.step, row, drafts)
    if config.HAS_LISTS:
        if flags & LAST_N != 0:
            if penalties.last_n >= 0:
                is_listed = (entry >= 0) & (entry < table.size)
                counts = tl.load(table.counts + entry, mask=is_listed, other=0)
                times = counts >> OUTPUT_SHIFT
    return times, (times > 0) | ((counts & IN_PROMPT) != 0)


@triton.jit
def apply_penalties(value, times, occurs, penalties):
    """Return logits with their penalties, each step rounded to float32: the launch is compiled without fused products.

    :param times: how often each id is in the output.
    :param occurs: whether each id is in prompt or output.
    """
    divided = tl.div_rn(value, tl.zeros_like(value) + penalties.repetition)
    repeated = tl.where(value > 0, divided, value * penalties.repetition)
    value = tl.where(occurs, repeated, value)
    frequent = value - penalties.frequency * times.to(tl.float32)
    return tl.where(times > 0, frequent - penalties.presence, value)
