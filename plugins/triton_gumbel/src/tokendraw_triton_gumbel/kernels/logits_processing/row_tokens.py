"""Reads the tokens before a row: the history of its request, then its drafts."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_draft_ids(row, drafts, number, mask):
    """Load drafts of a row's request by their numbers: -1 for placeholders, which may be any int64."""
    ids = tl.load(drafts.ids + row.draft + number, mask=mask, other=-1)
    return tl.where((ids >= 0) & (ids < row.vocab_size), ids, -1).to(tl.int32)


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
def count_drafts(ids, limit, row, drafts):
    """Return how often each id of a block [n] is among the first ``limit`` drafts before a row."""
    times = tl.zeros_like(ids)
    if drafts.ids is not None:
        for number in range(row.step):
            times += ((ids == draft_id(row, drafts, number)) & (number < limit)).to(tl.int32)
    return times
