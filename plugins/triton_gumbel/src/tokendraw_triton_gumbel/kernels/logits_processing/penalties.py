"""Repetition, frequency and presence penalties of a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import (
    IN_PROMPT,
    LAST_N,
    OUTPUT_SHIFT,
    PENALTIES,
)
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import count_drafts, draft_id

_WINDOW_TOKENS = tl.constexpr(16)
"""Tokens of a window that are compared together."""


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
def count_ids(ids, index, counts, row, penalties, history, drafts, flags, config):
    """Return (how often each id of a block [n] is in the output, whether it is in prompt or output).

    Where the penalties count the last tokens alone, both are of these.
    """
    times = (counts >> OUTPUT_SHIFT) + count_drafts(ids, index, row, drafts)[0]
    occurs = (times > 0) | ((counts & IN_PROMPT) != 0)
    if config.HAS_LISTS:
        if flags & LAST_N != 0:
            if penalties.last_n >= 0:
                times, total = _count_last(ids, row, penalties.last_n, history, drafts)
                occurs = total > 0
    return times, occurs


@triton.jit
def _count_last(ids, row, last_n, history, drafts):
    """Return (how often each id of a block [n] is in the output, how often in prompt or output) among the last tokens.

    Reads each of these tokens once.
    """
    times = tl.zeros_like(ids)
    total = tl.zeros_like(ids)
    num_prompt = row.num_tokens + row.step - row.num_output
    first = tl.maximum(row.num_tokens + row.step - last_n, 0)
    tokens = history.tokens + row.slot * history.max_tokens
    for start in range(first, row.num_tokens, _WINDOW_TOKENS):
        place = start + tl.arange(0, _WINDOW_TOKENS)
        token = tl.load(tokens + place, mask=place < row.num_tokens, other=-1)
        meets = (ids[:, None] == token[None, :]).to(tl.int32)
        total += tl.sum(meets, 1)
        times += tl.sum(tl.where(place[None, :] >= num_prompt, meets, 0), 1)
    if drafts.ids is not None:
        for number in range(tl.maximum(first - row.num_tokens, 0), row.step):
            meets_draft = (ids == draft_id(row, drafts, number)).to(tl.int32)
            total += meets_draft
            times += meets_draft
    return times, total


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
