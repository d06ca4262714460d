"""The exact threshold of a filter: the largest value from which upwards a weight adds up to a target.

With weight 1 and target k that is the k-th largest value, with weight exp(y) and target p Z the edge of the nucleus. One
program searches one row. What it reads is bounded by the tiles whose maximum reaches the lower bound:

1. Where few values lie above the bound, which the maxima of the tiles prove for top-k and for peaked nuclei, they are
   collected (read once) and the search goes on among them.
2. Otherwise passes over the tiles add up the weight above 8 pivots at a time until few values are left between two of
   them: first at distances from the maximum that grow by powers of two, then evenly between two, then evenly in the
   order of the floats, which ends after 14 passes whatever the values are. Ties need no room: a bracket of one value is
   found.

Writes at most :data:`CAPACITY` values a row, and a list of tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

CAPACITY = 4096
"""Values a row among which a search ends in registers."""
_PIVOTS = tl.constexpr(8)
_LEAST = tl.constexpr(-3.4028234663852886e38)
_LARGEST = tl.constexpr(3.4028234663852886e38)
_BLOCK = tl.constexpr(4)
"""Tiles that are read at once."""


@triton.jit
def key_of(x):
    """Float32 as int32 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """The inverse of :func:`key_of`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


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
def load_tiles(base, vocab_size, listed, start, count):
    """Logits [_BLOCK, 1024] of the listed tiles from ``start`` on, NaN and what lies outside as -inf; their numbers."""
    slot = start + tl.arange(0, _BLOCK)
    tile = tl.load(listed + slot, mask=slot < count, other=0)
    ids = tile[:, None] * 1024 + tl.arange(0, 1024)[None, :]
    x = tl.load(base + ids, mask=(slot < count)[:, None] & (ids < vocab_size), other=float("-inf")).to(
        tl.float32
    )
    return tl.where(x != x, float("-inf"), x), tile, slot < count


@triton.jit
def weigh(x, top, scale, BY_MASS: tl.constexpr):
    """The weight of values: ``exp((x - max x) / T)``, or 1."""
    if BY_MASS:
        finite = x > float("-inf")
        weight = tl.where(finite, tl.exp2((tl.where(finite, x, top) - top) * scale), 0.0)
    else:
        weight = tl.where(x > float("-inf"), 1.0, 0.0)
    return weight


@triton.jit
def mass_from(base, vocab_size, listed, count, floor, top, scale):
    """The sum of ``exp(y)`` over ``x >= floor`` in the listed tiles."""
    total = tl.zeros((_BLOCK,), tl.float32)
    start = 0
    while start < count:
        x, _, _ = load_tiles(base, vocab_size, listed, start, count)
        total += tl.sum(tl.where(x >= floor, weigh(x, top, scale, True), 0.0), 1)
        start += _BLOCK
    return tl.sum(total, 0)


@triton.jit
def collect(base, vocab_size, listed, count, low, high, values, CAPACITY: tl.constexpr):
    """Write the values in [low, high) of the listed tiles, as many as there is room for; returns how many there are."""
    found = 0
    start = 0
    tl.debug_barrier()
    while start < count:
        x, _, _ = load_tiles(base, vocab_size, listed, start, count)
        inside = (x >= low) & (x < high)
        flat = tl.reshape(inside.to(tl.int32), (_BLOCK * 1024,))
        place = found + tl.cumsum(flat, 0) - 1
        tl.store(values + place, tl.reshape(x, (_BLOCK * 1024,)), mask=(flat > 0) & (place < CAPACITY))
        found += tl.sum(flat, 0)
        start += _BLOCK
    tl.debug_barrier()
    return found


@triton.jit
def pick_pivots(step, low, high, top, spread):
    """Eight pivots, ascending or not: the first time by powers of two below the maximum, then evenly."""
    j = tl.arange(0, _PIVOTS)
    by_distance = top - spread * tl.exp2(j.to(tl.float32) - 4.0)
    finite_low = tl.maximum(low, _LEAST)
    finite_high = tl.minimum(high, _LARGEST)
    share = (j + 1).to(tl.float32) / (_PIVOTS + 1.0)
    evenly = finite_low * (1.0 - share) + finite_high * share
    first = key_of(finite_low).to(tl.int64)
    last = key_of(finite_high).to(tl.int64)
    by_order = value_of(
        (first + ((last - first) * (j + 1).to(tl.int64) + _PIVOTS) // (_PIVOTS + 1)).to(tl.int32)
    )
    pivots = tl.where(step == 0, by_distance, tl.where(step < 3, evenly, by_order))
    return tl.minimum(tl.maximum(pivots, finite_low), finite_high)


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
    target,
    top,
    scale,
    spread,
    BY_MASS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """The threshold of a row: at least ``low``, whose own weight from there upwards is taken to reach ``target``.

    :param maximum: [TILES] float32, -inf beyond the tiles.
    :param listed: [TILES] int32 of scratch, and ``values`` [CAPACITY] float32.
    :param top: the largest value, finite.
    :param spread: a distance from it at which there are values, positive.
    """
    high = float("inf")
    above = 0.0
    count = list_tiles(maximum, tile, tiles, low, listed)
    inside = tl.where(low > float("-inf"), 0, CAPACITY + 1)  # unknown: worth a try, if anything bounds it
    step = 0
    searching = True
    while searching:
        if inside <= CAPACITY:
            inside = collect(base, vocab_size, listed, count, low, high, values, CAPACITY)
        if inside <= CAPACITY:
            searching = False
        else:
            pivots = pick_pivots(step, low, high, top, spread)
            weights = tl.zeros((_BLOCK, _PIVOTS), tl.float32)
            counts = tl.zeros((_BLOCK, _PIVOTS), tl.int32)
            column = tl.arange(0, _PIVOTS)[None, :]
            start = 0
            while start < count:
                x, _, _ = load_tiles(base, vocab_size, listed, start, count)
                weight = weigh(x, top, scale, BY_MASS)
                for j in tl.static_range(_PIVOTS):
                    pivot = tl.sum(tl.where(tl.arange(0, _PIVOTS) == j, pivots, 0.0), 0)
                    reach = x >= pivot
                    if BY_MASS:
                        partial = tl.sum(tl.where(reach, weight, 0.0), 1)
                        weights += tl.where(column == j, partial[:, None], 0.0)
                    number = tl.sum(reach.to(tl.int32), 1)
                    counts += tl.where(column == j, number[:, None], 0)
                start += _BLOCK
            number = tl.sum(counts, 0)
            weight_of = tl.sum(weights, 0)
            if BY_MASS == 0:
                weight_of = number.to(tl.float32)
            enough = weight_of >= target
            low = tl.maximum(low, tl.max(tl.where(enough, pivots, float("-inf")), 0))
            beyond = tl.min(tl.where(enough, float("inf"), pivots), 0)
            at_beyond = (pivots == beyond) & (enough == 0)
            moved = beyond < high
            above = tl.where(moved, tl.max(tl.where(at_beyond, weight_of, float("-inf")), 0), above)
            over = tl.where(moved, tl.max(tl.where(at_beyond, number, 0), 0), 0)
            high = tl.minimum(high, beyond)
            at_low = tl.max(tl.where(pivots == low, number, 0), 0)
            inside = tl.where(at_low > 0, tl.maximum(at_low - over, 0), CAPACITY + 1)
            count = list_tiles(maximum, tile, tiles, low, listed)
            step += 1
            if (
                key_of(tl.minimum(high, _LARGEST)).to(tl.int64) - key_of(tl.maximum(low, _LEAST)).to(tl.int64)
                <= 1
            ):
                inside = -1
                searching = False
    return _among(values, inside, low, high, above, target, top, scale, BY_MASS, CAPACITY)


@triton.jit
def _among(
    values, inside, low, high, above, target, top, scale, BY_MASS: tl.constexpr, CAPACITY: tl.constexpr
):
    """The threshold among the collected values, by halving the order of the floats between ``low`` and ``high``."""
    place = tl.arange(0, CAPACITY)
    x = tl.load(values + place, mask=place < inside, other=float("-inf"))
    weight = weigh(x, top, scale, BY_MASS)
    first = key_of(tl.maximum(low, _LEAST)).to(tl.int64)
    last = key_of(tl.minimum(high, tl.maximum(tl.max(x, 0), low))).to(tl.int64) + 1
    while last - first > 1:
        middle = first + (last - first) // 2
        reach = x >= value_of(middle.to(tl.int32))
        if above + tl.sum(tl.where(reach, weight, 0.0), 0) >= target:
            first = middle
        else:
            last = middle
    return tl.where(low > value_of(first.to(tl.int32)), low, value_of(first.to(tl.int32)))


@triton.jit
def bound_by_tiles(maximum, weight, target):
    """A value that the threshold cannot be below, proven by the maxima of the tiles alone; -inf if they prove none.

    :param weight: [TILES] what each maximum adds, 0 beyond the tiles.
    """
    finite = maximum > float("-inf")
    low = tl.min(tl.where(finite, maximum, float("inf")), 0)
    high = tl.max(maximum, 0)
    proven = tl.sum(tl.where(finite, weight, 0.0), 0) >= target
    for _ in range(12):
        middle = low * 0.5 + high * 0.5
        enough = tl.sum(tl.where(maximum >= middle, weight, 0.0), 0) >= target
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return tl.where(proven, low, float("-inf"))
