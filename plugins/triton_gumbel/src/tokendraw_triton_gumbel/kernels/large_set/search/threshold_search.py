"""The exact threshold of a filter, by one program: the largest value from which upwards a weight adds up to a target.

With weight 1 and target k that is the k-th largest value, with weight exp(y) and target p Z the edge of the nucleus.
What it reads is bounded by the tiles whose maximum reaches the lower bound:

1. Where few values are left between two bounds they are collected (read once, they themselves twice) and the
   search goes on among them.
2. Until then passes over the tiles add up the weight above 4 pivots at a time: first at distances from the maximum that
   grow by powers of two, then evenly between two, then evenly in the order of the floats, which ends after 14 passes
   whatever the values are. Ties need no room: a bracket of one value is found.

Writes at most :data:`CAPACITY` values a row, and a list of tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.passes.hits import hits_in, next_hit
from tokendraw_triton_gumbel.kernels.large_set.search.listed_tiles import list_tiles, load_listed
from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX, LARGEST, LOWEST, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE, lane_sums
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

CAPACITY = 2048
"""Values a row among which a search ends in registers."""
_PIVOTS = tl.constexpr(4)
_EVEN_STEPS = tl.constexpr(4)
"""Steps before pivots are spread in the order of the floats."""


class SearchBracket(NamedTuple):
    """The bracket of a search: the threshold is at least ``low`` and below ``high``."""

    low: Any
    high: Any
    above: Any
    """Weight of the row from ``high`` upwards."""
    over: Any
    """Number of values that reach ``high``."""
    inside: Any
    """Number of values in the bracket, or an upper bound of it."""


@triton.jit(noinline=True)
def collect(source, scratch, count, low, high, config: tl.constexpr):
    """Write the values in [low, high) of the listed tiles, as many as there is room for; return how many there are."""
    found = 0
    start = 0
    tl.debug_barrier()
    while start < count:
        x, tile, _ = load_listed(source, scratch.tiles, start, count, config)
        mask, number, place, most, total = hits_in(x, low, high, found, config.WARPS, config.VECTOR)
        first = source.base + (tile * TILE_SIZE)[None, :]
        i = 0
        while i < most:
            own, mask = next_hit(mask, config.VECTOR)
            is_hit = (number > i) & (place + i < config.CAPACITY)
            tl.store(
                scratch.logits + place + i, tl.load(first + own, mask=is_hit).to(tl.float32), mask=is_hit
            )
            i += 1
        found += total
        start += config.WARPS
    tl.debug_barrier()
    return found


@triton.jit
def _pick_pivots(step, low, high, top, spread):
    """Return four pivots, ascending: the first time by powers of two below the maximum, then evenly."""
    j = tl.arange(0, _PIVOTS)
    by_distance = top - spread * tl.exp2(-j.to(tl.float32))
    finite_low = tl.maximum(low, LOWEST)
    finite_high = tl.minimum(high, LARGEST)
    share = (j + 1).to(tl.float32) / (_PIVOTS + 1.0)
    evenly = finite_low * (1.0 - share) + finite_high * share
    first = key_of(finite_low).to(tl.int64)
    last = key_of(finite_high).to(tl.int64)
    step_of = ((last - first) * (j + 1).to(tl.int64) + _PIVOTS) // (_PIVOTS + 1)
    by_order = value_of((first + step_of).to(tl.int32))
    pivots = tl.where(step == 0, by_distance, tl.where(step < _EVEN_STEPS, evenly, by_order))
    return tl.minimum(tl.maximum(pivots, finite_low), finite_high)


@triton.jit
def _element(values, index: tl.constexpr):
    """Return one of four."""
    return tl.sum(tl.where(tl.arange(0, _PIVOTS) == index, values, 0.0), 0)


@triton.jit
def _four(a, b, c, d):
    j = tl.arange(0, _PIVOTS)
    return tl.where(j == 0, a, tl.where(j == 1, b, tl.where(j == 2, c, d)))


@triton.jit
def _total(block):
    return tl.sum(tl.sum(block, 1), 0)


@triton.jit(noinline=True)
def _weigh_above(source, listed, count, p0, p1, p2, p3, top, scale, by_mass, config: tl.constexpr):
    """Return the weight from each of four pivots upwards in the listed tiles, then the number of values."""
    WARPS: tl.constexpr = config.WARPS
    w0 = tl.zeros((LANES, WARPS), tl.float32)
    w1, w2, w3 = w0, w0, w0
    n0, n1, n2, n3 = w0, w0, w0, w0  # numbers that float32 holds
    start = 0
    while start < count:
        x, _, _ = load_listed(source, listed, start, count, config)
        r0, r1 = reaches(x, p0, config.IS_NVIDIA), reaches(x, p1, config.IS_NVIDIA)
        r2, r3 = reaches(x, p2, config.IS_NVIDIA), reaches(x, p3, config.IS_NVIDIA)
        if by_mass:
            weight = weigh(x, top, scale)
            w0 += lane_sums(weight * r0)
            w1 += lane_sums(weight * r1)
            w2 += lane_sums(weight * r2)
            w3 += lane_sums(weight * r3)
        n0 += lane_sums(r0)
        n1 += lane_sums(r1)
        n2 += lane_sums(r2)
        n3 += lane_sums(r3)
        start += config.WARPS
    return _total(w0), _total(w1), _total(w2), _total(w3), _total(n0), _total(n1), _total(n2), _total(n3)


@triton.jit
def _narrowed(pivots, weight, number, low, high, above, over, target):
    """Return the bracket after a pass, as :class:`SearchBracket` has it."""
    enough = weight >= target
    low = tl.maximum(low, tl.max(tl.where(enough, pivots, float("-inf")), 0))
    beyond = tl.min(tl.where(enough, float("inf"), pivots), 0)
    moved = beyond < high
    at_beyond = (pivots == beyond) & (enough == 0)
    above = tl.where(moved, tl.max(tl.where(at_beyond, weight, float("-inf")), 0), above)
    over = tl.where(moved, tl.max(tl.where(at_beyond, number, 0), 0), over)
    high = tl.minimum(high, beyond)
    at_low = tl.max(tl.where(pivots == low, number, 0), 0)
    inside = tl.where(at_low > 0, tl.maximum(at_low - over, 0), INT32_MAX)
    return low, high, above, over, inside


@triton.jit
def search(
    source,
    maximum,
    tile,
    tiles,
    scratch,
    known,
    target,
    top,
    scale,
    spread,
    by_mass,
    config: tl.constexpr,
):
    """Return the threshold of a row, at least ``known.low``, from which upwards it weighs ``target``.

    :param maximum: [TILES] float32, -inf beyond the tiles; ``tile`` their numbers.
    :param known: :class:`SearchBracket`; from its low end upwards the weight is taken to reach ``target``.
    :param top: the largest value, finite.
    :param spread: a distance from it at which there are values, positive.
    """
    low, high, above, over, inside = known.low, known.high, known.above, known.over, known.inside
    count = list_tiles(maximum, tile, tiles, low, scratch.tiles)
    step = 0
    searching = True
    while searching:
        if inside <= config.CAPACITY:
            inside = collect(source, scratch, count, low, high, config)
        if inside <= config.CAPACITY:
            searching = False
        else:
            pivots = _pick_pivots(step, low, high, top, spread)
            w0, w1, w2, w3, n0, n1, n2, n3 = _weigh_above(
                source,
                scratch.tiles,
                count,
                _element(pivots, 0),
                _element(pivots, 1),
                _element(pivots, 2),
                _element(pivots, 3),
                top,
                scale,
                by_mass,
                config,
            )
            number = _four(n0, n1, n2, n3)
            weight = tl.where(by_mass, _four(w0, w1, w2, w3), number)
            number = number.to(tl.int32)
            low, high, above, over, inside = _narrowed(pivots, weight, number, low, high, above, over, target)
            count = list_tiles(maximum, tile, tiles, low, scratch.tiles)
            step += 1
            last_key = key_of(tl.minimum(high, LARGEST)).to(tl.int64)
            if last_key - key_of(tl.maximum(low, LOWEST)).to(tl.int64) <= 1:
                inside = -1
                searching = False
    return among(scratch.logits, inside, low, high, above, target, top, scale, by_mass, config.CAPACITY)


@triton.jit(noinline=True)
def among(values, inside, low, high, above, target, top, scale, by_mass, CAPACITY: tl.constexpr):
    """Return the threshold among the collected values, by halving the keys between ``low`` and ``high``."""
    place = tl.arange(0, CAPACITY)
    x = tl.load(values + place, mask=place < inside, other=float("-inf"))
    weight = tl.where(by_mass, weigh(x, top, scale), tl.where(x > float("-inf"), 1.0, 0.0))
    first = key_of(tl.maximum(low, LOWEST)).to(tl.int64)
    last = key_of(tl.minimum(high, tl.maximum(tl.max(x, 0), low))).to(tl.int64) + 1
    while last - first > 1:
        middle = first + (last - first) // 2
        reach = x >= value_of(middle.to(tl.int32))
        enough = above + tl.sum(tl.where(reach, weight, 0.0), 0) >= target
        first = tl.where(enough, middle, first)
        last = tl.where(enough, last, middle)
    found = value_of(first.to(tl.int32))
    return tl.where(low > found, low, found)
