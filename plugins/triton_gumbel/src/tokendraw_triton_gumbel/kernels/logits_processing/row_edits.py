"""Collects what a row of logits is edited by: its request, the drafts before it, and the edit of some of its ids.

An id that several edits name is written by one of them, so the programs of a row need no order: an id that is forbidden
gets -inf from whatever forbids it, and all others leave it alone; else an id with a bias is edited by the program that
reads biases; else one that occurs by the program that reads what occurs. Each finds that in one word of ``counts``.
Reads some numbers a row; and of each id one word of counts, one of each mask and the logit, which it writes.
"""

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
"""Edits that the rows of a call may ask for."""


class EditedRow(NamedTuple):
    """A row of logits with the request that it belongs to."""

    base: Any
    """The first logit."""
    vocab_size: Any
    row: Any
    """int64."""
    slot: Any
    """int64."""
    step: Any
    """Drafts that the row counts: the first ones of its request."""
    draft: Any
    """Where those begin."""
    has_request: Any
    """Whether there is one. If not, ``slot`` is 0 and nothing of it is to be used."""
    num_tokens: Any
    """Tokens in prompt and output, without drafts."""
    num_output: Any
    """Tokens in the output, with drafts."""
    is_early: Any
    """Whether stop ids are held back."""


class RowPenalties(NamedTuple):
    """The penalties of one row, float32."""

    repetition: Any
    frequency: Any
    presence: Any


@triton.jit
def _request_of(row, drafts, AT_ONCE: tl.constexpr):
    """Return (request of a row of a verification, drafts before it, where its drafts begin).

    The request is the number of all where the row belongs to none.
    """
    before = tl.zeros([AT_ONCE], tl.int32)
    for start in range(0, drafts.requests, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        end = tl.load(drafts.cu_num_logits + 1 + at, mask=at < drafts.requests, other=row + 1)
        before += (end <= row).to(tl.int32)
    request = tl.sum(before, 0)
    first = tl.load(drafts.cu_num_logits + request).to(tl.int32)
    return request, row - first, tl.where(drafts.width > 0, request * drafts.width, first - request)


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
    # A number that a branch hangs on is waited for, so none is loaded that no edit asks for.
    has_length = (flags & (BAD_WORDS | MIN_TOKENS)) != 0
    num_prompt = tl.load(history.num_prompt + slot, mask=has_length, other=0)
    num_tokens = tl.load(history.num_tokens + slot, mask=has_length, other=0)
    least = tl.load(stops.min_tokens + slot, mask=(flags & MIN_TOKENS) != 0, other=0)
    num_output = num_tokens - num_prompt + step
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
        num_output < least,
    )


@triton.jit
def load_penalties(slot, penalties, flags):
    """Return the :class:`RowPenalties` of a request."""
    is_any = (flags & PENALTIES) != 0
    return RowPenalties(
        tl.load(penalties.repetition + slot, mask=is_any, other=1.0),
        tl.load(penalties.frequency + slot, mask=is_any, other=0.0),
        tl.load(penalties.presence + slot, mask=is_any, other=0.0),
    )


@triton.jit
def draft_id(row, drafts, number):
    """Return the ``number``-th draft of a row's request: -1 where there is none."""
    there = (number >= 0) & (number < row.step) & (row.draft + number < drafts.count)
    return load_draft_ids(row, drafts, number, there)


@triton.jit
def load_draft_ids(row, drafts, number, there):
    """Return drafts of a row's request by their numbers: -1 for placeholders, which may be any int64."""
    ids = tl.load(drafts.ids + row.draft + number, mask=there, other=-1)
    return tl.where((ids >= 0) & (ids < row.vocab_size), ids, -1).to(tl.int32)


@triton.jit
def allowed_bits(ids, there, row, masks, is_restricted, flags):
    """Return a word of which the lowest bit says whether an id is allowed, for a block of ids."""
    place = ids >> 5
    words = ((row.vocab_size + 31) >> 5).to(tl.int64)
    given = tl.load(
        masks.bitmask + row.row * masks.bitmask_stride + place,
        mask=there & ((flags & BITMASK) != 0),
        other=-1,
    )
    own = tl.load(masks.allowed + row.slot * words + place, mask=there & is_restricted, other=-1)
    return (given & own) >> (ids & 31)


@triton.jit
def load_restricted(row, masks, flags):
    """Return whether the request of a row has a mask of its own."""
    asked = row.has_request & ((flags & ALLOWED) != 0)
    return tl.load(masks.is_restricted + row.slot, mask=asked, other=0).to(tl.int32) != 0


@triton.jit
def banned_ids(first, row, history, drafts, words, WORDS: tl.constexpr):
    """Return (the last ids of some bad words, whether the others of each end the output): [WORDS] each.

    :param first: number of the first of them.
    """
    word = first + tl.arange(0, WORDS)
    there = word < tl.load(words.count + row.slot)
    place = row.slot * words.room + word
    length = tl.load(words.lengths + place, mask=there, other=0)
    end = words.ids + (place + 1) * words.longest - 1
    is_banned = there & (length > 0) & (length <= row.num_output + 1)
    for back in range(1, tl.max(length, 0)):
        at = row.num_tokens + row.step - back  # of the token that stands so far before the next one
        in_history = (at >= 0) & (at < row.num_tokens)
        token = tl.load(history.tokens + row.slot * history.max_tokens + at, mask=in_history, other=-1)
        if drafts.ids is not None:
            token = tl.where(in_history, token, draft_id(row, drafts, at - row.num_tokens))
        expected = tl.load(end - back, mask=there & (back < length), other=-1)
        is_banned &= (back >= length) | (expected == token)
    return tl.load(end, mask=there, other=-1), is_banned


@triton.jit
def is_forbidden(ids, there, counts, row, is_restricted, history, drafts, masks, words, flags, config):
    """Return which ids of a block [n] something gives -inf.

    :param counts: their words of counts.
    """
    forbidden = tl.zeros_like(there)
    if flags & (ALLOWED | BITMASK) != 0:
        forbidden = (allowed_bits(ids, there, row, masks, is_restricted, flags) & 1) == 0
    if config.LISTED:
        forbidden |= ((counts & IS_STOP) != 0) & row.is_early
        if flags & BAD_WORDS != 0:
            if tl.max(counts & ENDS_BAD_WORD, 0) > 0:
                for first in range(0, tl.load(words.count + row.slot), config.WORDS):
                    last, is_banned = banned_ids(first, row, history, drafts, words, config.WORDS)
                    meets = (ids[:, None] == last[None, :]) & is_banned[None, :]
                    forbidden |= tl.max(meets.to(tl.int32), 1) > 0
    return forbidden


@triton.jit
def count_drafts(ids, at, row, drafts):
    """Return (how often each id of a block [n] is among the drafts of a row, how often before place ``at``)."""
    times = tl.zeros_like(ids)
    before = tl.zeros_like(ids)
    if drafts.ids is not None:
        for number in range(row.step):
            meets = (ids == draft_id(row, drafts, number)).to(tl.int32)
            times += meets
            before += tl.where(number < at, meets, 0)
    return times, before


@triton.jit
def load_logits(row, ids, there):
    """Return logits as float32: bfloat16 by its bits, of which Triton's interpreter makes other subnormal numbers."""
    if row.base.dtype.element_ty == tl.bfloat16:
        words = row.base.to(tl.pointer_type(tl.int16), bitcast=True)
        bits = tl.load(words + ids, mask=there, other=0).to(tl.int32) << 16
        value = bits.to(tl.float32, bitcast=True)
    else:
        value = tl.load(row.base + ids, mask=there, other=0).to(tl.float32)
    return value


@triton.jit
def store_logits(row, ids, value, there):
    """Write float32, rounded to the dtype of the logits, ties to even; NaN is left as it was.

    bfloat16 by its bits, as before: Triton's interpreter truncates.
    """
    there &= value == value
    if row.base.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(row.base.to(tl.pointer_type(tl.int16), bitcast=True) + ids, bits.to(tl.int16), mask=there)
    else:
        tl.store(row.base + ids, value.to(row.base.dtype.element_ty), mask=there)


@triton.jit
def penalised(value, counts, times, penalties):
    """Return logits with their penalties, each step rounded to float32: the launch is compiled without fused products.

    :param counts: words of counts, whose flags say which ids are in the prompt.
    :param times: how often each is in the output.
    """
    occurs = (times > 0) | ((counts & IN_PROMPT) != 0)
    divided = tl.div_rn(value, tl.zeros_like(value) + penalties.repetition)
    repeated = tl.where(value > 0, divided, value * penalties.repetition)
    value = tl.where(occurs, repeated, value)
    frequent = value - penalties.frequency * times.to(tl.float32)
    return tl.where(times > 0, frequent - penalties.presence, value)
