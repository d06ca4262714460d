"""Chooses the goal of the next pass over a row: the nucleus after another filter, a narrower bracket, its logits."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum
from tokendraw_triton_gumbel.kernels.large_set.first_guess import load_sample, write_guess
from tokendraw_triton_gumbel.kernels.large_set.next_guess import next_pivots, only_value
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
    MOST_COLLECTED,
    P_REST,
    ROUND,
    SCALE,
    TARGET_MAX,
    TARGET_MIN,
    TOP,
    K,
    P,
)
from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.row_values import RowScale
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_FILLED = tl.constexpr(0.75)
"""The share of the room for what is collected that may be expected to fill up: parts of a row hold more or less."""


@triton.jit
def may_collect(columns, bracket, tiles, reals, TILES: tl.constexpr):
    """Return whether there is room for what lies in a bracket, by what it weighs and its lightest logit."""
    inside = column_sum(columns, bracket.low_column, 0, tiles, TILES)
    inside -= column_sum(columns, bracket.high_column, 0, tiles, TILES)
    lightest = weigh(bracket.low, tl.load(reals + TOP), tl.load(reals + SCALE))
    return (inside <= lightest * (MOST_COLLECTED * _FILLED)).to(tl.int32)


@triton.jit
def _scale_of(reals):
    return RowScale(
        tl.load(reals + TOP), tl.load(reals + SCALE), tl.load(reals + INVERSE), tl.load(reals + MASS)
    )


@triton.jit
def start_nucleus(source, granules, columns, bracket, exact, goal, tiles, reals, ints, config: tl.constexpr):
    """Guess the nucleus of what the other filters leave: what is at least the low end, and as much as that weighs.

    :param granules: [tiles, 16] maxima of the row.
    :param bracket: of the k-th value, or of the floor of min-p; ``exact`` whether its low end is it.
    """
    TILES: tl.constexpr = config.TILES
    is_kth = goal == KTH_THEN_NUCLEUS
    at_threshold = tl.where(exact > 0, bracket.low_column, bracket.high_column)
    over = column_sum(columns, at_threshold, COUNT_COLUMN, tiles, TILES)
    inside = column_sum(columns, bracket.low_column, COUNT_COLUMN, tiles, TILES) - over
    tl.store(reals + KTH_LOW, bracket.low)
    tl.store(reals + KTH_HIGH, tl.where(exact > 0, bracket.low, bracket.high))
    tl.store(ints + KTH_ABOVE, tl.where(is_kth, over, 0.0).to(tl.int32))
    tl.store(ints + KTH_INSIDE, tl.where(is_kth, inside, 0.0).to(tl.int32))
    p = tl.load(reals + P).to(tl.float64) + tl.load(reals + P_REST).to(tl.float64)
    heaviest = column_sum(columns, bracket.low_column, 0, tiles, TILES)
    lightest = tl.where(exact > 0, heaviest, column_sum(columns, bracket.high_column, 0, tiles, TILES))
    target_max = (p * heaviest.to(tl.float64)).to(tl.float32)
    target_min = (p * lightest.to(tl.float64)).to(tl.float32)
    tl.store(reals + TARGET_MIN, target_min)
    tl.store(reals + TARGET_MAX, target_max)
    target = target_min * 0.5 + target_max * 0.5
    scale = _scale_of(reals)
    yes, no = goal != FIND_NUCLEUS, goal == FIND_NUCLEUS
    number = tiles * GRANULES_PER_TILE
    write_guess(source, granules, number, scale, bracket.low, target, yes, no, reals, config.ULP_STEP)


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
    last = load_pivots(reals)
    tied = only_value(load_sample(source), bracket.low, bracket.high)
    is_second = tl.load(ints + ROUND) == 0
    pivots = next_pivots(
        bracket, at_low, at_high, target, scale, last.p0 - last.p3, tied, is_second, config.ULP_STEP
    )
    # Neither end again: what lies between two neighbouring values would never be divided.
    first = value_of(key_of(bracket.low) + config.ULP_STEP)
    first = tl.where(bracket.low_column >= 0, first, bracket.low)
    final = value_of(key_of(bracket.high) - config.ULP_STEP)
    final = tl.where(bracket.high_column >= 0, final, scale.top)
    write_pivots(reals, pivots, first, final, config.ULP_STEP)
