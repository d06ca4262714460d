"""Chooses the goal of the next pass over a row: the nucleus after another filter, a narrower bracket, or its logits."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum
from tokendraw_triton_gumbel.kernels.large_set.first_pivots import load_sample, write_first_pivots
from tokendraw_triton_gumbel.kernels.large_set.next_pivots import next_pivots, only_value
from tokendraw_triton_gumbel.kernels.large_set.pivots import load_pivots, write_pivots
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COUNT_COLUMN,
    FIND_KTH,
    FIND_NUCLEUS,
    INVERSE,
    KTH_ABOVE,
    KTH_HIGH,
    KTH_INSIDE,
    KTH_LOW,
    KTH_THEN_NUCLEUS,
    MASS,
    MAX_EXPECTED,
    MAX_LOGIT,
    P_REST,
    ROUND,
    SCALE,
    TARGET_MAX,
    TARGET_MIN,
    K,
    P,
)
from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.row_values import RowScale
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import weigh


@triton.jit
def may_collect(columns, bracket, tiles, reals, TILES: tl.constexpr):
    """Return whether the logits of a bracket fit the buffer, by the bracket's mass and its lightest logit."""
    mass_inside = column_sum(columns, bracket.low_column, 0, tiles, TILES)
    mass_inside -= column_sum(columns, bracket.high_column, 0, tiles, TILES)
    lightest = weigh(bracket.low, tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE))
    return (mass_inside <= lightest * MAX_EXPECTED).to(tl.int32)


@triton.jit
def _scale_of(reals):
    return RowScale(
        tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE), tl.load(reals + INVERSE), tl.load(reals + MASS)
    )


@triton.jit
def start_nucleus(
    source, granules, columns, bracket, is_exact, goal, tiles, reals, ints, config: tl.constexpr
):
    """Start the search for the nucleus of what another filter leaves: write its target mass and first pivots.

    :param granules: [tiles, 16] maxima of the row.
    :param bracket: of the k-th value, or of the floor; ``is_exact`` whether the low end equals it.
    """
    TILES: tl.constexpr = config.TILES
    is_kth = goal == KTH_THEN_NUCLEUS
    at_threshold = tl.where(is_exact > 0, bracket.low_column, bracket.high_column)
    count_above = column_sum(columns, at_threshold, COUNT_COLUMN, tiles, TILES)
    count_inside = column_sum(columns, bracket.low_column, COUNT_COLUMN, tiles, TILES) - count_above
    tl.store(reals + KTH_LOW, bracket.low)
    tl.store(reals + KTH_HIGH, tl.where(is_exact > 0, bracket.low, bracket.high))
    tl.store(ints + KTH_ABOVE, tl.where(is_kth, count_above, 0.0).to(tl.int32))
    tl.store(ints + KTH_INSIDE, tl.where(is_kth, count_inside, 0.0).to(tl.int32))
    p = tl.load(reals + P).to(tl.float64) + tl.load(reals + P_REST).to(tl.float64)
    heaviest = column_sum(columns, bracket.low_column, 0, tiles, TILES)
    lightest = tl.where(is_exact > 0, heaviest, column_sum(columns, bracket.high_column, 0, tiles, TILES))
    target_max = (p * heaviest.to(tl.float64)).to(tl.float32)
    target_min = (p * lightest.to(tl.float64)).to(tl.float32)
    tl.store(reals + TARGET_MIN, target_min)
    tl.store(reals + TARGET_MAX, target_max)
    target = target_min * 0.5 + target_max * 0.5
    scale = _scale_of(reals)
    by_mass, by_maxima = goal != FIND_NUCLEUS, goal == FIND_NUCLEUS
    num_granules = tiles * GRANULES_PER_TILE
    write_first_pivots(
        source, granules, num_granules, scale, bracket.low, target, by_mass, by_maxima, reals, config.ULP_STEP
    )


@triton.jit
def place_pivots(source, columns, bracket, goal, tiles, reals, ints, config: tl.constexpr):
    """Write four pivots inside the bracket."""
    TILES: tl.constexpr = config.TILES
    offset = tl.where((goal == FIND_KTH) | (goal == KTH_THEN_NUCLEUS), COUNT_COLUMN, 0)
    at_low = column_sum(columns, bracket.low_column, offset, tiles, TILES)
    at_low = tl.where((bracket.low_column >= 0) | (offset > 0), at_low, tl.load(reals + MASS))
    at_high = column_sum(columns, bracket.high_column, offset, tiles, TILES)
    mass = tl.load(reals + TARGET_MIN) * 0.5 + tl.load(reals + TARGET_MAX) * 0.5
    target = tl.where(offset > 0, tl.load(ints + K).to(tl.float32), mass)
    scale = _scale_of(reals)
    old_pivots = load_pivots(reals)
    tied_value = only_value(load_sample(source), bracket.low, bracket.high)
    is_second = tl.load(ints + ROUND) == 0
    pivots = next_pivots(
        bracket,
        at_low,
        at_high,
        target,
        scale,
        old_pivots.p0 - old_pivots.p3,
        tied_value,
        is_second,
        config.ULP_STEP,
    )
    # Neither end again: pivots at the ends would never divide two neighbouring values.
    lowest = value_of(key_of(bracket.low) + config.ULP_STEP)
    lowest = tl.where(bracket.low_column >= 0, lowest, bracket.low)
    highest = value_of(key_of(bracket.high) - config.ULP_STEP)
    highest = tl.where(bracket.high_column >= 0, highest, scale.max_logit)
    write_pivots(reals, pivots, lowest, highest, config.ULP_STEP)
