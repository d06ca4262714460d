"""Finds the exact threshold of a row that its passes did not decide, in one program: the last resort.

Reads what :mod:`.threshold_search` reads, from the row's bracket on; then once more the tiles that reach the threshold.
Writes 4 bytes a tile.
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
    FLOOR,
    GOAL,
    KTH_ABOVE,
    KTH_HIGH,
    KTH_INSIDE,
    KTH_LOW,
    KTH_THEN_NUCLEUS,
    MAX_LOGIT,
    P_REST,
    SCALE,
    SLOT,
    TARGET_MAX,
    K,
    P,
)
from tokendraw_triton_gumbel.kernels.large_set.search.listed_tiles import list_tiles, mass_from, weigh_listed
from tokendraw_triton_gumbel.kernels.large_set.search.threshold_search import SearchBracket, search
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST

_UNKNOWN_COUNT = tl.constexpr(2e9)
"""Represents an uncounted number of logits."""
_MIN_SPREAD = tl.constexpr(1e-6)
"""A distance from the largest logit at which to look first, where all tiles have the same maximum."""


@triton.jit(noinline=True)
def find_threshold(source, maxima, tiles, reals, ints, columns, scratch, config: tl.constexpr):
    """Return the threshold of a row, and write the weight of every tile from the threshold upwards.

    The weights go into the first column of the row's free slot.

    :param source: the :class:`.RowAddress`; ``maxima`` [tiles] of the row, like ``reals`` and ``ints``.
    :param scratch: the :class:`~.argument_groups.SearchScratch` of the program.
    """
    TILES: tl.constexpr = config.TILES
    tile = tl.arange(0, TILES)
    maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
    goal = tl.load(ints + GOAL)
    bracket = load_bracket(reals, ints)
    low_column, high_column = bracket.low_column, bracket.high_column
    max_logit = tl.load(reals + MAX_LOGIT)
    scale = tl.load(reals + SCALE)
    p = tl.load(reals + P).to(tl.float64) + tl.load(reals + P_REST).to(tl.float64)
    k = tl.load(ints + K)
    kth_inside = tl.load(ints + KTH_INSIDE)
    target = tl.load(reals + TARGET_MAX)
    threshold = tl.load(reals + FLOOR)
    lowest = tl.min(tl.where(maximum > float("-inf"), maximum, max_logit), 0)
    nearby = tl.maximum(tl.abs(max_logit) * _MIN_SPREAD, _MIN_SPREAD)
    spread = tl.where(max_logit > lowest, max_logit - lowest, nearby)
    count_above = column_sum(columns, high_column, COUNT_COLUMN, tiles, TILES)
    above = column_sum(columns, high_column, 0, tiles, TILES)
    count_inside = column_sum(columns, low_column, COUNT_COLUMN, tiles, TILES) - count_above
    has_columns = (low_column >= 0) & (high_column >= 0)
    needs_kth = (goal == FIND_NUCLEUS) & (
        kth_inside > 0
    )  # the k-th value is still missing, and has a bracket of its own
    step = tl.where((goal == FIND_NUCLEUS) & (kth_inside <= 0), 1, 0)
    end = tl.where(goal == FIND_KTH, 1, 2)
    while step < end:
        by_mass = step == 1
        low, high = tl.maximum(bracket.low, LOWEST), bracket.high
        start = tl.where(by_mass, above, count_above)
        start_count = tl.where(by_mass, 0, count_above).to(tl.int32)
        max_inside = tl.where(has_columns & (goal != FIND_NUCLEUS), count_inside, _UNKNOWN_COUNT).to(tl.int32)
        if needs_kth & (step == 0):
            low, high = tl.load(reals + KTH_LOW), tl.load(reals + KTH_HIGH)
            start_count = tl.load(ints + KTH_ABOVE)
            start = start_count.to(tl.float32)
            max_inside = kth_inside
        if by_mass & (needs_kth | (goal == KTH_THEN_NUCLEUS)):
            count = list_tiles(maximum, tile, tiles, threshold, scratch.tiles)
            mass = mass_from(source, scratch.tiles, count, threshold, max_logit, scale, config)
            target = (p * mass.to(tl.float64)).to(tl.float32)
            low = tl.maximum(low, threshold)
            if goal == KTH_THEN_NUCLEUS:
                low = threshold
                high = tl.full((), float("inf"), tl.float32)
                start = tl.full((), 0.0, tl.float32)
            max_inside = tl.full((), _UNKNOWN_COUNT, tl.float32).to(tl.int32)
        required_mass = tl.where(by_mass, target, k.to(tl.float32))
        is_worthwhile = required_mass > 0
        if goal == FIND_LARGER:
            # The larger of the two thresholds is in the bracket; the smaller may lie below.
            offset = tl.where(by_mass, 0, COUNT_COLUMN)
            reaches = column_sum(columns, low_column, offset, tiles, TILES)
            is_worthwhile = (low_column < 0) | (reaches >= required_mass)
        if is_worthwhile:
            search_bracket = SearchBracket(low, high, start, start_count, max_inside)
            filter_threshold = search(
                source,
                maximum,
                tile,
                tiles,
                scratch,
                search_bracket,
                required_mass,
                max_logit,
                scale,
                spread,
                by_mass,
                config,
            )
            threshold = tl.maximum(threshold, filter_threshold)
        step += 1
    threshold = tl.minimum(threshold, max_logit)
    weights = columns + tl.load(ints + SLOT).to(tl.int64) * tiles * COLUMNS
    tl.store(weights + tile * COLUMNS, tl.zeros_like(maximum), mask=tile < tiles)
    count = list_tiles(maximum, tile, tiles, threshold, scratch.tiles)
    weigh_listed(source, scratch.tiles, count, threshold, max_logit, scale, weights, config)
    return threshold
