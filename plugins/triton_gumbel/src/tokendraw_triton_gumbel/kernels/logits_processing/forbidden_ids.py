"""Ids of a row that masks, stop ids or bad words forbid."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import (
    ALLOWED,
    BAD_WORDS,
    BITMASK,
    ENDS_BAD_WORD,
    IS_STOP,
)
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import draft_id


@triton.jit
def load_restricted(row, masks, flags):
    """Load whether the request of a row has an allow-list."""
    has_masks = row.has_request & ((flags & ALLOWED) != 0)
    return tl.load(masks.is_restricted + row.slot, mask=has_masks, other=0).to(tl.int32) != 0


@triton.jit
def _allowed_bits(ids, mask, row, masks, is_restricted, flags):
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
        forbidden = (_allowed_bits(ids, mask, row, masks, is_restricted, flags) & 1) == 0
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
def forbid_listed(row, history, drafts, stops, words, flags, config: tl.constexpr):
    """Write -inf to the last ids of bad words that a token would complete, and to stop ids before ``min_tokens``."""
    if row.is_early:
        count = tl.load(stops.count + row.slot)
        for start in range(0, count, config.IDS):
            index = start + tl.arange(0, config.IDS)
            ids = tl.load(stops.ids + row.slot * stops.room + index, mask=index < count, other=-1)
            tl.store(row.base + ids, -float("inf"), mask=(ids >= 0) & (ids < row.vocab_size))
    if flags & BAD_WORDS != 0:
        for first in range(0, tl.load(words.count + row.slot), config.IDS):
            ids, is_banned = banned_ids(first, row, history, drafts, words, config.IDS)
            mask = is_banned & (ids >= 0) & (ids < row.vocab_size)
            tl.store(row.base + ids, -float("inf"), mask=mask)
