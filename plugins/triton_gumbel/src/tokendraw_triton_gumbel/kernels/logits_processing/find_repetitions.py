"""Launch Y: the repetitions that DRY makes dearer. A program a row, before launch E.

A match in front of a token is as long as the tokens there, read backwards, equal the last ones of the history. A block
of places compares eight tokens further back a turn, until no place of the block matches or the longest match is
reached. Reads each token of the searched history a few times; writes the ids that have a cost with the lengths of their
matches.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.edited_row import DRY, load_row
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import token_before

_PLACES = tl.constexpr(256)
"""Tokens of a history that are looked at together."""
_STEPS = tl.constexpr(8)
"""Tokens in front of each place that are compared together."""
_BREAKERS = tl.constexpr(8)
"""Breakers that are compared together with a block of tokens."""


@triton.jit
def _is_breaker(tokens, row, dry):
    """Return whether each token of a block is a breaker of the row's request."""
    found = tl.zeros_like(tokens)
    count = tl.load(dry.num_breakers + row.slot)
    for start in range(0, count, _BREAKERS):
        index = start + tl.arange(0, _BREAKERS)
        breakers = tl.load(dry.breakers + row.slot * dry.room + index, mask=index < count, other=-1)
        found += tl.sum((tokens[:, None] == breakers[None, :]).to(tl.int32), 1)
    return found > 0


@triton.jit
def _longest_match(size, row, history, drafts, dry):
    """Return how long a match may be: up to the last breaker or placeholder, and to the largest power."""
    longest = size
    start = size * 0
    while (start < size) & (longest == size):
        back = start + tl.arange(0, _PLACES)
        tokens = token_before(back, size, row, history, drafts)
        ends = ((tokens < 0) | _is_breaker(tokens, row, dry)) & (back < size)
        longest = tl.minimum(longest, tl.min(tl.where(ends, back, size), 0))
        start += _PLACES
    return tl.minimum(longest, tl.load(dry.max_match + row.slot))


@triton.jit
def _find(row, history, drafts, dry, repetitions):
    """Write the ids with a cost, and return their number."""
    size = tl.minimum(row.num_tokens + row.step, tl.load(dry.last_n + row.slot))
    allowed_length = tl.load(dry.allowed_length + row.slot)
    longest = _longest_match(size, row, history, drafts, dry)
    offset = row.row * repetitions.room
    count = size * 0
    for start in range(0, size, _PLACES):
        back = start + tl.arange(0, _PLACES)
        tokens = token_before(back, size, row, history, drafts)
        has_id = (tokens >= 0) & (_is_breaker(tokens, row, dry) == 0)
        is_match = has_id.to(tl.int32)
        length = tl.zeros_like(back)
        step = size * 0
        while (step < longest) & (tl.max(is_match, 0) > 0):
            number = tl.arange(0, _STEPS)
            last = token_before(step + number, size, row, history, drafts)
            earlier = token_before(back[:, None] + (1 + step + number)[None, :], size, row, history, drafts)
            differs = (earlier != last[None, :]) | (step + number >= longest)[None, :]
            run = tl.min(tl.where(differs, number[None, :], _STEPS), 1)
            length += is_match * run
            is_match &= (run == _STEPS).to(tl.int32)
            step += _STEPS
        has_cost = has_id & (length >= allowed_length)
        index = count + tl.cumsum(has_cost.to(tl.int32), 0) - 1
        tl.store(repetitions.ids + offset + index, tokens, mask=has_cost)
        tl.store(repetitions.lengths + offset + index, length, mask=has_cost)
        count += tl.sum(has_cost.to(tl.int32), 0)
    return count


@triton.jit(
    do_not_specialize=["rows", "logits", "history", "drafts", "stops", "dry", "repetitions"],
    do_not_specialize_on_alignment=["rows", "logits", "history", "drafts", "stops", "dry", "repetitions"],
)
def find_repetitions(rows, logits, history, drafts, stops, dry, repetitions, config: tl.constexpr):
    """Each program finds the repetitions of a row. Grid (rows).

    :param dry: :class:`~.argument_groups.Dry`; this module defines all groups except the logits'.
    :param logits: :class:`~.shared.argument_groups.Logits`, which are not read.
    :param config: :class:`~.shared.configs.ProcessConfig`.
    """
    row = tl.program_id(0)
    edited_row = load_row(row, logits, rows, drafts, history, stops, DRY, config)
    multiplier = tl.load(dry.multiplier + edited_row.slot, mask=edited_row.has_request, other=0.0)
    count = row * 0
    if multiplier != 0.0:
        count = _find(edited_row, history, drafts, dry, repetitions)
    tl.store(repetitions.count + row, count)
