"""Loads the edits of a row of logits: its request, the drafts before the row, and the edit of some of its ids.

Each id has one owner, so the programs of a row need no order: every program that forbids an id writes -inf to it, and
the others leave it alone; otherwise the program of the bias list edits its ids, and the programs of the occurring ids
edit the rest. One word of ``counts`` tells the owner.
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
LAST_N = tl.constexpr(64)
DRY = tl.constexpr(128)
THINKING = tl.constexpr(256)
"""Kinds of edits in a call; ``LAST_N`` says that penalties of some requests count the last tokens alone."""

_REPETITIONS = tl.constexpr(8)
"""Matches of DRY that are compared together with a block of ids."""
_WINDOW_TOKENS = tl.constexpr(16)
"""Tokens of a window that are compared together."""


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


class RowPenalties(NamedTuple):
    """The penalties of a row, float32."""

    repetition: Any
    frequency: Any
    presence: Any
    last_n: Any
    """int32: number of tokens that are counted; negative: all."""


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
def draft_id(row, drafts, number):
    """Return draft ``number`` of a row's request: -1 without such a draft."""
    mask = (number >= 0) & (number < row.step) & (row.draft + number < drafts.count)
    return load_draft_ids(row, drafts, number, mask)


@triton.jit
def token_before(back, size, row, history, drafts):
    """Return the tokens of a row by their distance from the last: -1 for placeholders and beyond ``size``."""
    place = row.num_tokens + row.step - 1 - back
    mask = (back >= 0) & (back < size)
    in_history = mask & (place < row.num_tokens)
    token = tl.load(history.tokens + row.slot * history.max_tokens + place, mask=in_history, other=-1)
    if drafts.ids is not None:
        token = tl.where(in_history, token, draft_id(row, drafts, place - row.num_tokens))
    return tl.where(mask & (token >= 0) & (token < row.vocab_size), token, -1)


@triton.jit
def load_draft_ids(row, drafts, number, mask):
    """Load drafts of a row's request by their numbers: -1 for placeholders, which may be any int64."""
    ids = tl.load(drafts.ids + row.draft + number, mask=mask, other=-1)
    return tl.where((ids >= 0) & (ids < row.vocab_size), ids, -1).to(tl.int32)


@triton.jit
def allowed_bits(ids, mask, row, masks, is_restricted, flags):
    """Return words whose lowest bit says whether each id of a block is allowed."""
    offset = ids >> 5
    words = ((row.vocab_size + 31) >> 5).to(tl.int64)
    bitmask_words = tl.load(
        masks.bitmask + row.row * masks.bitmask_stride + offset,
        mask=mask & ((flags & BITMASK) != 0),
        other=-1,
    )
    allowed_words = tl.load(masks.allowed + row.slot * words + offset, mask=mask & is_restricted, other=-1)
    return (bitmask_words & allowed_words) >> (ids & 31)


@triton.jit
def load_restricted(row, masks, flags):
    """Load whether the request of a row has an allow-list."""
    has_masks = row.has_request & ((flags & ALLOWED) != 0)
    return tl.load(masks.is_restricted + row.slot, mask=has_masks, other=0).to(tl.int32) != 0


@triton.jit
def banned_ids(first, row, history, drafts, words, WORDS: tl.constexpr):
    """Return (the last ids of some bad words, whether the output ends with the preceding ids): [WORDS] each.

    :param first: number of the first bad word.
    """
    word = first + tl.arange(0, WORDS)
    mask = word < tl.load(words.count + row.slot)
    offset = row.slot * words.room + word
    length = tl.load(words.lengths + offset, mask=mask, other=0)
    end = words.ids + (offset + 1) * words.longest - 1
    is_banned = mask & (length > 0) & (length <= row.num_output + 1)
    for back in range(1, tl.max(length, 0)):
        history_index = row.num_tokens + row.step - back  # of the token ``back`` steps before the next one
        in_history = (history_index >= 0) & (history_index < row.num_tokens)
        token = tl.load(
            history.tokens + row.slot * history.max_tokens + history_index, mask=in_history, other=-1
        )
        if drafts.ids is not None:
            token = tl.where(in_history, token, draft_id(row, drafts, history_index - row.num_tokens))
        expected = tl.load(end - back, mask=mask & (back < length), other=-1)
        is_banned &= (back >= length) | (expected == token)
    return tl.load(end, mask=mask, other=-1), is_banned


@triton.jit
def is_forbidden(ids, mask, counts, row, is_restricted, history, drafts, masks, words, flags, config):
    """Return whether masks, stop ids or bad words forbid each id of a block [n].

    :param counts: the words of counts of the ids.
    """
    forbidden = tl.zeros_like(mask)
    if flags & (ALLOWED | BITMASK) != 0:
        forbidden = (allowed_bits(ids, mask, row, masks, is_restricted, flags) & 1) == 0
    if config.HAS_LISTS:
        forbidden |= ((counts & IS_STOP) != 0) & row.is_early
        if flags & BAD_WORDS != 0:
            if tl.max(counts & ENDS_BAD_WORD, 0) > 0:
                for first in range(0, tl.load(words.count + row.slot), config.WORDS):
                    last, is_banned = banned_ids(first, row, history, drafts, words, config.WORDS)
                    meets = (ids[:, None] == last[None, :]) & is_banned[None, :]
                    forbidden |= tl.max(meets.to(tl.int32), 1) > 0
        forbidden = tl.where(row.forced >= 0, ids != row.forced, forbidden)
    return forbidden


@triton.jit
def count_drafts(ids, index, row, drafts):
    """Return (how often each id of a block [n] is among the drafts of a row, how often before place ``index``)."""
    times = tl.zeros_like(ids)
    before = tl.zeros_like(ids)
    if drafts.ids is not None:
        for number in range(row.step):
            meets = (ids == draft_id(row, drafts, number)).to(tl.int32)
            times += meets
            before += tl.where(number < index, meets, 0)
    return times, before


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
def load_multiplier(row, dry, flags, config):
    """Load the multiplier of DRY of a row's request; 0 where it is off."""
    multiplier = 0.0
    if config.HAS_LISTS:
        multiplier = tl.load(dry.multiplier + row.slot, mask=(flags & DRY) != 0, other=0.0)
    return multiplier


@triton.jit
def dry_costs(ids, row, multiplier, dry, repetitions):
    """Return the cost [n] of DRY of each id of a block, 0 where there is none.

    The power is computed in float64 by squaring.
    """
    longest = tl.zeros_like(ids) - 1
    offset = row.row * repetitions.room
    count = tl.load(repetitions.count + row.row)
    for start in range(0, count, _REPETITIONS):
        index = start + tl.arange(0, _REPETITIONS)
        repeated = tl.load(repetitions.ids + offset + index, mask=index < count, other=-1)
        length = tl.load(repetitions.lengths + offset + index, mask=index < count, other=-1)
        lengths = tl.where(ids[:, None] == repeated[None, :], length[None, :], -1)
        longest = tl.maximum(longest, tl.max(lengths, 1))
    has_cost = longest >= 0
    rest = tl.where(has_cost, longest - tl.load(dry.allowed_length + row.slot), 0)
    factor = tl.load(dry.base + row.slot).to(tl.float64)
    cost = tl.zeros_like(ids).to(tl.float64) + 1.0
    while tl.max(rest, 0) > 0:
        cost *= tl.where((rest & 1) != 0, factor, 1.0)
        factor *= factor
        rest >>= 1
    return tl.where(has_cost, (cost * multiplier.to(tl.float64)).to(tl.float32), 0.0)


@triton.jit
def load_logits(row, ids, mask):
    """Load logits as float32: bfloat16 by its bits, since Triton's interpreter converts subnormal numbers wrongly."""
    if row.base.dtype.element_ty == tl.bfloat16:
        words = row.base.to(tl.pointer_type(tl.int16), bitcast=True)
        bits = tl.load(words + ids, mask=mask, other=0).to(tl.int32) << 16
        value = bits.to(tl.float32, bitcast=True)
    else:
        value = tl.load(row.base + ids, mask=mask, other=0).to(tl.float32)
    return value


@triton.jit
def store_logits(row, ids, value, mask):
    """Round float32 to the dtype of the logits, ties to even, and store it; NaN is not stored.

    bfloat16 is rounded by its bits: Triton's interpreter truncates.
    """
    mask &= value == value
    if row.base.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(row.base.to(tl.pointer_type(tl.int16), bitcast=True) + ids, bits.to(tl.int16), mask=mask)
    else:
        tl.store(row.base + ids, value.to(row.base.dtype.element_ty), mask=mask)


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
