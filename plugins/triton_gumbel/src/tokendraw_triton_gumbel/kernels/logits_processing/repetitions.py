"""Matches of DRY: how many tokens in front of each place equal the last ones of the history, read backwards.

A lane goes through neighbouring places from the newest on, and never back over a token that it has compared: while a
place lies within the last match, its own match is known from that of the history's end with itself, up to the end of
that match (the Z algorithm; Gusfield 1997, "Algorithms on Strings, Trees and Sequences", 1.4). So a lane takes at most
two steps a place, and one for each token of the longest match, whatever repeats.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logits_processing.id_table import insert_keys, new_keys
from tokendraw_triton_gumbel.kernels.logits_processing.row_tokens import token_before

OVERLAPS = tl.constexpr(256)
"""Matches of the history's end with itself that are known. Places further behind the last match begin anew."""
_STEPS = tl.constexpr(8)
"""Tokens in front of each place of the history's end that are compared together."""
_BREAKERS = tl.constexpr(8)
"""Breakers that are compared together with a block of tokens."""
_SHARE = tl.constexpr(16)
"""A lane has at least one place for so many tokens of the longest match."""


@triton.jit
def is_breaker(tokens, row, dry):
    """Return whether each token of a block is a breaker of the row's request."""
    found = tl.zeros_like(tokens)
    count = tl.load(dry.num_breakers + row.slot)
    for start in range(0, count, _BREAKERS):
        index = start + tl.arange(0, _BREAKERS)
        breakers = tl.load(dry.breakers + row.slot * dry.room + index, mask=index < count, other=-1)
        found += tl.sum((tokens[:, None] == breakers[None, :]).to(tl.int32), 1)
    return found > 0


@triton.jit
def longest_match(size, row, history, drafts, dry):
    """Return how long a match may be: up to the last breaker or placeholder, and to the largest power.

    :param size: number of tokens that are searched.
    """
    limit = tl.minimum(size, tl.load(dry.max_match + row.slot))
    longest = limit
    start = size * 0
    while (start < limit) & (longest == limit):
        back = start + tl.arange(0, OVERLAPS)
        tokens = token_before(back, size, row, history, drafts)
        ends = ((tokens < 0) | is_breaker(tokens, row, dry)) & (back < limit)
        longest = tl.minimum(longest, tl.min(tl.where(ends, back, limit), 0))
        start += OVERLAPS
    return longest


@triton.jit
def find_overlaps(longest, size, row, history, drafts):
    """Return the match of the history's end with itself, by the distance: [OVERLAPS]."""
    distance = tl.arange(0, OVERLAPS)
    length = tl.zeros_like(distance)
    active = ((distance > 0) & (distance < longest)).to(tl.int32)
    step = size * 0
    while (step < longest) & (tl.max(active, 0) > 0):
        number = step + tl.arange(0, _STEPS)
        last = token_before(number, size, row, history, drafts)
        earlier = token_before(distance[:, None] + number[None, :], size, row, history, drafts)
        differs = (earlier != last[None, :]) | (number >= longest)[None, :]
        run = tl.min(tl.where(differs, (number - step)[None, :], _STEPS), 1)
        length += active * run
        active &= (run == _STEPS).to(tl.int32)
        step += _STEPS
    return length


@triton.jit
def insert_matches(part, parts, row, history, drafts, dry, ends, table, config: tl.constexpr):
    """Insert the ids that have a cost, with the lengths of their matches, in turns with the row's other programs."""
    LANES: tl.constexpr = config.LANES
    size = tl.minimum(row.num_tokens + row.step, tl.load(dry.last_n + row.slot))
    longest = tl.load(ends.lengths + row.row)
    if longest >= tl.load(dry.allowed_length + row.slot):
        places = tl.maximum(longest // _SHARE, config.PLACES)
        for start in range(part * LANES * places, size, parts * LANES * places):
            first = start + tl.arange(0, LANES) * places
            _insert_lanes(first, places, size, longest, row, history, drafts, dry, ends, table)


@triton.jit
def _insert_lanes(first, places, size, longest, row, history, drafts, dry, ends, table):
    """Insert the ids at some places behind the first one of each lane.

    ``place`` is the distance of a token from the last one. The tokens in front of it begin at ``place + 1``; those
    from ``match`` to ``compared`` equal the last ones.
    """
    overlaps = ends.overlaps + row.row * OVERLAPS
    allowed_length = tl.load(dry.allowed_length + row.slot)
    place = first
    last_place = tl.minimum(first + places, size)
    match = first + 1
    compared = first + 1
    last_key = tl.zeros_like(first).to(tl.int64)
    active = (place < last_place).to(tl.int32)
    while tl.max(active, 0) > 0:
        begin = place + 1
        is_inside = (begin > match) & (begin - match < OVERLAPS)
        compared = tl.where((begin > match) & (is_inside == 0), begin, compared)
        known = tl.load(overlaps + begin - match, mask=(active > 0) & is_inside, other=size)
        is_known = known < compared - begin
        matched = compared - begin
        is_open = (active > 0) & (matched < longest)
        expected = token_before(tl.where(is_open, matched, -1), size, row, history, drafts)
        earlier = token_before(compared, size, row, history, drafts)
        is_longer = (expected >= 0) & (expected == earlier) & (is_known == 0)
        length = tl.where(is_known, known, matched)
        match = tl.where(is_known, match, begin)
        compared += is_longer.to(tl.int32)
        is_over = (active > 0) & (is_longer == 0)
        has_cost = is_over & (length >= allowed_length)
        if tl.max(has_cost.to(tl.int32), 0) > 0:
            tokens = token_before(place, size, row, history, drafts)
            keys = new_keys(tokens, length)
            has_cost &= (tokens >= 0) & (keys != last_key)
            has_cost &= is_breaker(tokens, row, dry) == 0
            insert_keys(keys, has_cost, table)
            last_key = tl.where(has_cost, keys, last_key)
        place += is_over.to(tl.int32)
        begin = place + 1
        match = tl.where(begin > compared, begin, match)
        compared = tl.maximum(begin, compared)
        active = (place < last_place).to(tl.int32)
