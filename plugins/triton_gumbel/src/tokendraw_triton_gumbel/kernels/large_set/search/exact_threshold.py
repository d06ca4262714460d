"""The last resort for a row whose draw the passes did not decide: one program finds the threshold exactly.

Reads what :mod:`.threshold_search` says, from the bracket that is known on; then once more the tiles that reach the
threshold. Writes 4 bytes a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.bracket import load_bracket
from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLUMNS,
    COUNT_COLUMN,
    FIND_KTH,
    FIND_LARGER,
    FIND_NUCLEUS,
    GOAL,
    KTH_ABOVE,
    KTH_HIGH,
    KTH_INSIDE,
    KTH_LOW,
    KTH_THEN_NUCLEUS,
    MIN_P_FLOOR,
    P_REST,
    SCALE,
    SLOT,
    TARGET_MAX,
    TOP,
    K,
    P,
)
from tokendraw_triton_gumbel.kernels.large_set.search.listed_tiles import list_tiles, mass_from, weigh_listed
from tokendraw_triton_gumbel.kernels.large_set.search.threshold_search import SearchBracket, search
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST

_UNKNOWN = tl.constexpr(2e9)
"""Stands for a number of logits that nobody has counted."""
_LEAST_SPREAD = tl.constexpr(1e-6)
"""A distance from the largest logit at which to look first, where all tiles have the same maximum."""


@triton.jit(noinline=True)
def find_threshold(source, maxima, tiles, reals, ints, columns, scratch, config: tl.constexpr):
    """Return the threshold of a row, and write what every tile weighs from there upwards.

    The weights go into the first column of the row's free slot.

    :param source: the :class:`~.row_values.Row`; ``maxima`` [tiles] of the row, like ``reals`` and ``ints``.
    :param scratch: the :class:`~.argument_groups.SearchScratch` of the program.
    """
    TILES: tl.constexpr = config.TILES
    tile = tl.arange(0, TILES)
    maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
    goal = tl.load(ints + GOAL)
    bracket = load_bracket(reals, ints)
    low_column, high_column = bracket.low_column, bracket.high_column
    top = tl.load(reals + TOP)
    scale = tl.load(reals + SCALE)
    p = tl.load(reals + P).to(tl.float64) + tl.load(reals + P_REST).to(tl.float64)
    k = tl.load(ints + K)
    kth_inside = tl.load(ints + KTH_INSIDE)
    target = tl.load(reals + TARGET_MAX)
    floor = tl.load(reals + MIN_P_FLOOR)
    lowest = tl.min(tl.where(maximum > float("-inf"), maximum, top), 0)
    nearby = tl.maximum(tl.abs(top) * _LEAST_SPREAD, _LEAST_SPREAD)
    spread = tl.where(top > lowest, top - lowest, nearby)
    over = column_sum(columns, high_column, COUNT_COLUMN, tiles, TILES)
    above = column_sum(columns, high_column, 0, tiles, TILES)
    inside = column_sum(columns, low_column, COUNT_COLUMN, tiles, TILES) - over
    both_known = (low_column >= 0) & (high_column >= 0)
    again = (goal == FIND_NUCLEUS) & (
        kth_inside > 0
    )  # a k-th value is still to be found, in a bracket of its own
    step = tl.where((goal == FIND_NUCLEUS) & (kth_inside <= 0), 1, 0)
    end = tl.where(goal == FIND_KTH, 1, 2)
    while step < end:
        by_mass = step == 1
        first, last = tl.maximum(bracket.low, LOWEST), bracket.high
        start = tl.where(by_mass, above, over)
        number = tl.where(by_mass, 0, over).to(tl.int32)
        between = tl.where(both_known & (goal != FIND_NUCLEUS), inside, _UNKNOWN).to(tl.int32)
        if again & (step == 0):
            first, last = tl.load(reals + KTH_LOW), tl.load(reals + KTH_HIGH)
            number = tl.load(ints + KTH_ABOVE)
            start = number.to(tl.float32)
            between = kth_inside
        if by_mass & (again | (goal == KTH_THEN_NUCLEUS)):
            count = list_tiles(maximum, tile, tiles, floor, scratch.tiles)
            mass = mass_from(source, scratch.tiles, count, floor, top, scale, config)
            target = (p * mass.to(tl.float64)).to(tl.float32)
            first = tl.maximum(first, floor)
            if goal == KTH_THEN_NUCLEUS:
                first = floor
                last = tl.full((), float("inf"), tl.float32)
                start = tl.full((), 0.0, tl.float32)
            between = tl.full((), _UNKNOWN, tl.float32).to(tl.int32)
        needed = tl.where(by_mass, target, k.to(tl.float32))
        worth = needed > 0
        if goal == FIND_LARGER:
            # The larger of the two thresholds is in the bracket; the other one may lie below.
            offset = tl.where(by_mass, 0, COUNT_COLUMN)
            reaches = column_sum(columns, low_column, offset, tiles, TILES)
            worth = (low_column < 0) | (reaches >= needed)
        if worth:
            known = SearchBracket(first, last, start, number, between)
            found = search(
                source, maximum, tile, tiles, scratch, known, needed, top, scale, spread, by_mass, config
            )
            floor = tl.maximum(floor, found)
        step += 1
    floor = tl.minimum(floor, top)
    weights = columns + tl.load(ints + SLOT).to(tl.int64) * tiles * COLUMNS
    tl.store(weights + tile * COLUMNS, tl.zeros_like(maximum), mask=tile < tiles)
    count = list_tiles(maximum, tile, tiles, floor, scratch.tiles)
    weigh_listed(source, scratch.tiles, count, floor, top, scale, weights, config)
    return floor
