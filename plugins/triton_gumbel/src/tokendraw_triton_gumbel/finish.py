"""The last resort for a wide row whose draw the passes did not decide: one program finds the threshold exactly.

Reads what :mod:`.search` says, from the bracket that is known on; then once more the tiles that reach the threshold.
Writes 4 bytes a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.order import LEAST, weigh
from tokendraw_triton_gumbel.passes import (
    AT_MOST,
    BY_COUNT,
    BY_MASS,
    COLUMNS,
    COUNT_FIRST,
    COUNT_HIGH,
    COUNT_INSIDE,
    COUNT_LOW,
    COUNT_OVER,
    EITHER,
    FLOOR,
    HIGH,
    HIGH_COLUMN,
    KIND,
    LOW,
    LOW_COLUMN,
    SCALE,
    SHARE,
    SHARE_REST,
    SLOT,
    TOP,
    K,
    column_of,
)
from tokendraw_triton_gumbel.search import list_tiles, load_listed, mass_from, search
from tokendraw_triton_gumbel.tiles import sum_tiles

_UNKNOWN = tl.constexpr(2e9)


@triton.jit(noinline=True)
def find_exactly(
    base,
    vocab_size,
    maxima,
    tiles,
    plan,
    note,
    partials,
    listed,
    values,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The threshold of a row; into the first column of its free slot goes what every tile weighs from there upwards."""
    tile = tl.arange(0, TILES)
    maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
    kind = tl.load(note + KIND)
    low_column = tl.load(note + LOW_COLUMN)
    high_column = tl.load(note + HIGH_COLUMN)
    low = tl.load(plan + LOW)
    high = tl.load(plan + HIGH)
    top = tl.load(plan + TOP)
    scale = tl.load(plan + SCALE)
    share = tl.load(plan + SHARE).to(tl.float64) + tl.load(plan + SHARE_REST).to(tl.float64)
    k = tl.load(note + K)
    counted_inside = tl.load(note + COUNT_INSIDE)
    target = tl.load(plan + AT_MOST)
    floor = tl.load(plan + FLOOR)
    lowest = tl.min(tl.where(maximum > float("-inf"), maximum, top), 0)
    spread = tl.where(top > lowest, top - lowest, tl.maximum(tl.abs(top) * 1e-6, 1e-6))
    over = tl.sum(column_of(partials, tl.where(high_column >= 0, high_column + 4, -1), tile, tiles), 0)
    above = tl.sum(column_of(partials, high_column, tile, tiles), 0)
    inside = tl.sum(column_of(partials, tl.where(low_column >= 0, low_column + 4, -1), tile, tiles), 0) - over
    both_known = (low_column >= 0) & (high_column >= 0)
    again = (kind == BY_MASS) & (
        counted_inside > 0
    )  # a k-th value is still to be found, in a bracket of its own
    step = tl.where((kind == BY_MASS) & (counted_inside <= 0), 1, 0)
    end = tl.where(kind == BY_COUNT, 1, 2)
    while step < end:
        by_mass = step == 1
        first, last = tl.maximum(low, LEAST), high
        start = tl.where(by_mass, above, over)
        number = tl.where(by_mass, 0, over).to(tl.int32)
        between = tl.where(both_known & (kind != BY_MASS), inside, _UNKNOWN).to(tl.int32)
        if again & (step == 0):
            first, last = tl.load(plan + COUNT_LOW), tl.load(plan + COUNT_HIGH)
            number = tl.load(note + COUNT_OVER)
            start = number.to(tl.float32)
            between = counted_inside
        if by_mass & (again | (kind == COUNT_FIRST)):
            listed_count = list_tiles(maximum, tile, tiles, floor, listed)
            mass = mass_from(base, vocab_size, listed, listed_count, floor, top, scale, WARPS, VECTOR)
            target = (share * mass.to(tl.float64)).to(tl.float32)
            first = tl.maximum(first, floor)
            if kind == COUNT_FIRST:
                first = floor
                last = tl.full((), float("inf"), tl.float32)
                start = tl.full((), 0.0, tl.float32)
            between = tl.full((), _UNKNOWN, tl.float32).to(tl.int32)
        needed = tl.where(by_mass, target, k.to(tl.float32))
        worth = needed > 0
        if kind == EITHER:
            # The larger of the two thresholds is in the bracket; the other one may lie below.
            offset = tl.where(by_mass, 0, 4)
            reaches = tl.sum(
                column_of(partials, tl.where(low_column >= 0, low_column + offset, -1), tile, tiles), 0
            )
            worth = (low_column < 0) | (reaches >= needed)
        if worth:
            found = search(
                base,
                vocab_size,
                maximum,
                tile,
                tiles,
                listed,
                values,
                first,
                last,
                start,
                number,
                between,
                needed,
                top,
                scale,
                spread,
                by_mass,
                CAPACITY,
                WARPS,
                VECTOR,
            )
            floor = tl.maximum(floor, found)
        step += 1
    floor = tl.minimum(floor, top)
    weights = partials + tl.load(note + SLOT).to(tl.int64) * tiles * COLUMNS
    tl.store(weights + tile * COLUMNS, tl.zeros_like(maximum), mask=tile < tiles)
    count = list_tiles(maximum, tile, tiles, floor, listed)
    start = 0
    while start < count:
        x, number, inside_list = load_listed(base, vocab_size, listed, start, count, WARPS, VECTOR)
        total = sum_tiles(tl.where(x >= floor, weigh(x, top, scale), 0.0))
        tl.store(weights + number * COLUMNS, total, mask=inside_list)
        start += WARPS
    tl.debug_barrier()
    return floor
