"""The exact threshold of a filter, by one program: the largest value from which upwards a weight adds up to a target.

With weight 1 and target k that is the k-th largest value, with weight exp(y) and target p Z the edge of the nucleus.
What it reads is bounded by the tiles whose maximum reaches the lower bound:

1. Where few values are left between two bounds they are collected (read once) and the search goes on among them.
2. Until then passes over the tiles add up the weight above 4 pivots at a time: first at distances from the maximum that
   grow by powers of two, then evenly between two, then evenly in the order of the floats, which ends after 14 passes
   whatever the values are. Ties need no room: a bracket of one value is found.

Writes at most :data:`CAPACITY` values a row, and a list of tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.order import LARGEST, LEAST, key_of, value_of, weigh
from tokendraw_triton_gumbel.tiles import element_ids, sum_tiles

CAPACITY = 2048
"""Values a row among which a search ends in registers."""


@triton.jit
def list_tiles(maximum, tile, tiles, bound, listed):
    """Write the numbers of the tiles that reach ``bound`` to ``listed``, ascending; returns how many."""
    hot = (maximum >= bound) & (tile < tiles)
    place = tl.cumsum(hot.to(tl.int32), 0) - 1
    tl.debug_barrier()  # nobody reads the last list any more
    tl.store(listed + place, tile, mask=hot)
    tl.debug_barrier()
    return tl.sum(hot.to(tl.int32), 0)


@triton.jit
def load_listed(base, vocab_size, listed, start, count, WARPS: tl.constexpr, VECTOR: tl.constexpr):
    """Logits [32, WARPS, chunks, VECTOR] of the listed tiles from ``start`` on, NaN and what lies outside as -inf."""
    slot = start + tl.arange(0, WARPS)
    tile = tl.load(listed + slot, mask=slot < count, other=0)
    ids = element_ids(1, VECTOR) + (tile * 1024)[None, :, None, None]
    inside = (slot < count)[None, :, None, None] & (ids < vocab_size)
    x = tl.load(base + ids, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf")), tile, slot < count


@triton.jit
def weight_of(x, top, scale, by_mass):
    """The weight of values: ``exp((x - max x) / T)``, or 1."""
    return tl.where(by_mass, weigh(x, top, scale), tl.where(x > float("-inf"), 1.0, 0.0))


@triton.jit
def mass_from(base, vocab_size, listed, count, floor, top, scale, WARPS: tl.constexpr, VECTOR: tl.constexpr):
    """The sum of ``exp(y)`` over ``x >= floor`` in the listed tiles."""
    total = tl.zeros((WARPS,), tl.float32)
    start = 0
    while start < count:
        x, _, _ = load_listed(base, vocab_size, listed, start, count, WARPS, VECTOR)
        total += sum_tiles(tl.where(x >= floor, weigh(x, top, scale), 0.0))
        start += WARPS
    return tl.sum(total, 0)


@triton.jit
def collect(
    base,
    vocab_size,
    listed,
    count,
    low,
    high,
    values,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Write the values in [low, high) of the listed tiles, as many as there is room for; returns how many there are."""
    found = 0
    start = 0
    tl.debug_barrier()
    while start < count:
        x, _, _ = load_listed(base, vocab_size, listed, start, count, WARPS, VECTOR)
        inside = ((x >= low) & (x < high)).to(tl.int32)
        lane = tl.sum(tl.sum(inside, 3), 2)
        flat = tl.reshape(lane, (32 * WARPS,))
        before = tl.reshape(found + tl.cumsum(flat, 0) - flat, (32, WARPS))
        mine = tl.reshape(inside, (32, WARPS, 32))
        place = before[:, :, None] + tl.cumsum(mine, 2) - 1
        tl.store(values + place, tl.reshape(x, (32, WARPS, 32)), mask=(mine > 0) & (place < CAPACITY))
        found += tl.sum(flat, 0)
        start += WARPS
    tl.debug_barrier()
    return found


@triton.jit
def pick_pivots(step, low, high, top, spread):
    """Four pivots, ascending: the first time by powers of two below the maximum, then evenly."""
    j = tl.arange(0, 4)
    by_distance = top - spread * tl.exp2(-j.to(tl.float32))
    finite_low = tl.maximum(low, LEAST)
    finite_high = tl.minimum(high, LARGEST)
    share = (j + 1).to(tl.float32) / 5.0
    evenly = finite_low * (1.0 - share) + finite_high * share
    first = key_of(finite_low).to(tl.int64)
    last = key_of(finite_high).to(tl.int64)
    by_order = value_of((first + ((last - first) * (j + 1).to(tl.int64) + 4) // 5).to(tl.int32))
    pivots = tl.where(step == 0, by_distance, tl.where(step < 4, evenly, by_order))
    return tl.minimum(tl.maximum(pivots, finite_low), finite_high)


@triton.jit
def _of(values, index: tl.constexpr):
    """One of four."""
    return tl.sum(tl.where(tl.arange(0, 4) == index, values, 0.0), 0)


@triton.jit
def _four(a, b, c, d):
    j = tl.arange(0, 4)
    return tl.where(j == 0, a, tl.where(j == 1, b, tl.where(j == 2, c, d)))


@triton.jit
def _lanes(block):
    return tl.sum(tl.sum(block, 3), 2)


@triton.jit
def _everything(block):
    return tl.sum(tl.sum(block, 1), 0)


@triton.jit
def weigh_above(
    base,
    vocab_size,
    listed,
    count,
    pivots,
    top,
    scale,
    by_mass,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """(The weight, the number of values from each of four pivots upwards) in the listed tiles: [4] each."""
    p0 = _of(pivots, 0)
    p1 = _of(pivots, 1)
    p2 = _of(pivots, 2)
    p3 = _of(pivots, 3)
    w0 = tl.zeros((32, WARPS), tl.float32)
    w1, w2, w3 = w0, w0, w0
    n0 = tl.zeros((32, WARPS), tl.int32)
    n1, n2, n3 = n0, n0, n0
    start = 0
    while start < count:
        x, _, _ = load_listed(base, vocab_size, listed, start, count, WARPS, VECTOR)
        if by_mass:
            weight = weigh(x, top, scale)
            w0 += _lanes(tl.where(x >= p0, weight, 0.0))
            w1 += _lanes(tl.where(x >= p1, weight, 0.0))
            w2 += _lanes(tl.where(x >= p2, weight, 0.0))
            w3 += _lanes(tl.where(x >= p3, weight, 0.0))
        n0 += _lanes((x >= p0).to(tl.int32))
        n1 += _lanes((x >= p1).to(tl.int32))
        n2 += _lanes((x >= p2).to(tl.int32))
        n3 += _lanes((x >= p3).to(tl.int32))
        start += WARPS
    number = _four(_everything(n0), _everything(n1), _everything(n2), _everything(n3))
    weight = _four(_everything(w0), _everything(w1), _everything(w2), _everything(w3))
    return tl.where(by_mass, weight, number.to(tl.float32)), number


@triton.jit
def narrowed(pivots, weight, number, low, high, above, over, target):
    """The bracket (low, high, the weight and the number of values from ``high`` upwards, how many are inside)."""
    enough = weight >= target
    low = tl.maximum(low, tl.max(tl.where(enough, pivots, float("-inf")), 0))
    beyond = tl.min(tl.where(enough, float("inf"), pivots), 0)
    moved = beyond < high
    at_beyond = (pivots == beyond) & (enough == 0)
    above = tl.where(moved, tl.max(tl.where(at_beyond, weight, float("-inf")), 0), above)
    over = tl.where(moved, tl.max(tl.where(at_beyond, number, 0), 0), over)
    high = tl.minimum(high, beyond)
    at_low = tl.max(tl.where(pivots == low, number, 0), 0)
    inside = tl.where(at_low > 0, tl.maximum(at_low - over, 0), 2147483647)
    return low, high, above, over, inside


@triton.jit
def search(
    base,
    vocab_size,
    maximum,
    tile,
    tiles,
    listed,
    values,
    low,
    high,
    above,
    over,
    inside,
    target,
    top,
    scale,
    spread,
    by_mass,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The threshold of a row: at least ``low``, whose own weight from there upwards is taken to reach ``target``.

    :param maximum: [TILES] float32, -inf beyond the tiles.
    :param listed: [TILES] int32 of scratch, and ``values`` [CAPACITY] float32.
    :param high: what the threshold is below, with the weight ``above`` and the number ``over`` of values from there
        upwards; and how many are ``inside`` the bracket, or more.
    :param top: the largest value, finite.
    :param spread: a distance from it at which there are values, positive.
    """
    count = list_tiles(maximum, tile, tiles, low, listed)
    step = 0
    searching = True
    while searching:
        if inside <= CAPACITY:
            inside = collect(base, vocab_size, listed, count, low, high, values, CAPACITY, WARPS, VECTOR)
        if inside <= CAPACITY:
            searching = False
        else:
            pivots = pick_pivots(step, low, high, top, spread)
            weight, number = weigh_above(
                base, vocab_size, listed, count, pivots, top, scale, by_mass, WARPS, VECTOR
            )
            low, high, above, over, inside = narrowed(pivots, weight, number, low, high, above, over, target)
            count = list_tiles(maximum, tile, tiles, low, listed)
            step += 1
            if (
                key_of(tl.minimum(high, LARGEST)).to(tl.int64) - key_of(tl.maximum(low, LEAST)).to(tl.int64)
                <= 1
            ):
                inside = -1
                searching = False
    return _among(values, inside, low, high, above, target, top, scale, by_mass, CAPACITY)


@triton.jit
def _among(values, inside, low, high, above, target, top, scale, by_mass, CAPACITY: tl.constexpr):
    """The threshold among the collected values, by halving the order of the floats between ``low`` and ``high``."""
    place = tl.arange(0, CAPACITY)
    x = tl.load(values + place, mask=place < inside, other=float("-inf"))
    weight = weight_of(x, top, scale, by_mass)
    first = key_of(tl.maximum(low, LEAST)).to(tl.int64)
    last = key_of(tl.minimum(high, tl.maximum(tl.max(x, 0), low))).to(tl.int64) + 1
    while last - first > 1:
        middle = first + (last - first) // 2
        reach = x >= value_of(middle.to(tl.int32))
        enough = above + tl.sum(tl.where(reach, weight, 0.0), 0) >= target
        first = tl.where(enough, middle, first)
        last = tl.where(enough, last, middle)
    found = value_of(first.to(tl.int32))
    return tl.where(low > found, low, found)
