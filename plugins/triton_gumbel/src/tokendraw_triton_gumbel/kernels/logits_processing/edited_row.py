"""Loads the request of a row of logits, and the drafts before the row."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

IN_PROMPT = tl.constexpr(1)
HAS_BIAS = tl.constexpr(2)
IS_STOP = tl.constexpr(4)
ENDS_BAD_WORD = tl.constexpr(8)
OUTPUT_SHIFT = tl.constexpr(4)
"""The flags of a count, and where the times begin that the id is in the output."""

PENALTIES = tl.constexpr(1)
BIAS = tl.constexpr(2)
ALLOWED = tl.constexpr(4)
BAD_WORDS = tl.constexpr(8)
MIN_TOKENS = tl.constexpr(16)
BITMASK = tl.constexpr(32)
LAST_N = tl.constexpr(64)
DRY = tl.constexpr(128)
THINKING = tl.constexpr(256)
"""Kinds of edits in a call; ``LAST_N`` says that penalties of some requests count the last tokens alone."""


class EditedRow(NamedTuple):
    """A row of logits and its request."""

    base: Any
    """The first logit."""
    vocab_size: Any
    row: Any
    """int64."""
    slot: Any
    """int64."""
    step: Any
    """Number of drafts before the row: the first ones of its request."""
    draft: Any
    """Index of the request's first draft."""
    has_request: Any
    """Whether the row has a request. If not, ``slot`` is 0 and its parameters are not used."""
    num_tokens: Any
    """Tokens in prompt and output, without drafts."""
    num_output: Any
    """Tokens in the output, with drafts."""
    is_early: Any
    """Whether stop ids are held back."""
    forced: Any
    """The id that alone is allowed, by a spent thinking budget; -1: none."""


@triton.jit
def _request_of(row, drafts, AT_ONCE: tl.constexpr):
    """Return (request of a row of a verification, number of drafts before the row, index of the request's first draft).

    The request equals the number of requests if the row belongs to none.
    """
    ends_before = tl.zeros([AT_ONCE], tl.int32)
    for start in range(0, drafts.requests, AT_ONCE):
        index = start + tl.arange(0, AT_ONCE)
        end = tl.load(drafts.cu_num_logits + 1 + index, mask=index < drafts.requests, other=row + 1)
        ends_before += (end <= row).to(tl.int32)
    request = tl.sum(ends_before, 0)
    first_row = tl.load(drafts.cu_num_logits + request).to(tl.int32)
    return request, row - first_row, tl.where(drafts.width > 0, request * drafts.width, first_row - request)


@triton.jit
def load_row(row, logits, rows, drafts, history, stops, flags, config: tl.constexpr):
    """Return the :class:`EditedRow` of a row."""
    entry = row
    step = row * 0
    draft = row * 0
    has_request = row >= 0
    if drafts.ids is not None:
        entry, step, draft = _request_of(row, drafts, config.REQUESTS)
        has_request = entry < drafts.requests
    slot = tl.load(rows.row_index + entry, mask=has_request, other=-1).to(tl.int64)
    has_request &= (slot >= 0) & (slot < rows.num_slots)
    slot = tl.where(has_request, slot, 0)
    # A branch waits for its number, so only numbers for the call's edits are loaded.
    has_length = (flags & (BAD_WORDS | MIN_TOKENS | LAST_N | DRY | THINKING)) != 0
    num_prompt = tl.load(history.num_prompt + slot, mask=has_length, other=0)
    num_tokens = tl.load(history.num_tokens + slot, mask=has_length, other=0)
    min_tokens = tl.load(stops.min_tokens + slot, mask=(flags & MIN_TOKENS) != 0, other=0)
    num_output = num_tokens - num_prompt + step
    forced = load_forced(row, rows, flags, config)
    row = row.to(tl.int64)
    return EditedRow(
        logits.base + row * logits.row_stride,
        logits.vocab_size,
        row,
        slot,
        step,
        draft,
        has_request,
        num_tokens,
        num_output,
        num_output < min_tokens,
        forced,
    )


@triton.jit
def load_forced(row, rows, flags, config):
    """Load the id that a spent thinking budget forces in a row; -1 without one."""
    forced = row * 0 - 1
    if config.HAS_LISTS:
        if rows.forced_ids is not None:
            forced = tl.load(rows.forced_ids + row, mask=(flags & THINKING) != 0, other=-1)
    return forced
