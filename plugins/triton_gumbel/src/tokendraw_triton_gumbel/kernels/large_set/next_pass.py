"""Chooses the goal of the next pass over a row: the nucleus after another filter, a narrower bracket, its logits."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum
from tokendraw_triton_gumbel.kernels.large_set.pivots import (
    load_pivots,
    load_sample,
    next_pivots,
    snap_pivots,
    write_guess,
    write_pivots,
)
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COUNT_COLUMN,
    FIND_KTH,
    FIND_NUCLEUS,
    KTH_ABOVE,
    KTH_HIGH,
    KTH_INSIDE,
    KTH_LOW,
    KTH_THEN_NUCLEUS,
    MASS,
    P_REST,
    SCALE,
    SEGMENT,
    TARGET_MAX,
    TARGET_MIN,
    TOP,
    K,
    P,
)
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_FILLED = tl.constexpr(0.75)
"""The share of the room for what is collected that may be expected to fill up: parts of a row hold more or less."""


@triton.jit
def may_collect(columns, bracket, tiles, reals, parts, TILES: tl.constexpr):
    """Return whether there is room for what lies in a bracket, by what it weighs and its lightest logit."""
    inside = column_sum(columns, bracket.low_column, 0, tiles, TILES)
    inside -= column_sum(columns, bracket.high_column, 0, tiles, TILES)
    lightest = weigh(bracket.low, tl.load(reals + TOP), tl.load(reals + SCALE))
    room = (parts * SEGMENT).to(tl.float32) * _FILLED
    return (inside <= lightest * room).to(tl.int32)


@triton.jit
def start_nucleus(source, columns, bracket, exact, goal, tiles, reals, ints, config: tl.constexpr):
    """Guess the nucleus of what the other filters leave: what is at least the low end, and as much as that weighs.

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
    below = tl.load(reals + MASS) - (target_min * 0.5 + target_max * 0.5)
    top, scale = tl.load(reals + TOP), tl.load(reals + SCALE)
    by_mass = tl.full((), FIND_NUCLEUS, tl.int32) == FIND_NUCLEUS
    write_guess(source, top, scale, bracket.low, below, by_mass, reals, config.ULP_STEP)


@triton.jit
def place_pivots(source, columns, bracket, goal, tiles, reals, ints, config: tl.constexpr):
    """Write four pivots inside the bracket."""
    TILES: tl.constexpr = config.TILES
    low, high = bracket.low, bracket.high
    offset = tl.where((goal == FIND_KTH) | (goal == KTH_THEN_NUCLEUS), COUNT_COLUMN, 0)
    at_low = column_sum(columns, bracket.low_column, offset, tiles, TILES)
    at_low = tl.where((bracket.low_column >= 0) | (offset > 0), at_low, tl.load(reals + MASS))
    at_high = column_sum(columns, bracket.high_column, offset, tiles, TILES)
    mass = tl.load(reals + TARGET_MIN) * 0.5 + tl.load(reals + TARGET_MAX) * 0.5
    target = tl.where(offset > 0, tl.load(ints + K).to(tl.float32), mass)
    top = tl.load(reals + TOP)
    last = load_pivots(reals)
    guess = next_pivots(
        low, high, bracket.low_column, bracket.high_column, at_low, at_high, target, top, last.p0 - last.p3
    )
    x = load_sample(source)
    x = tl.where((x >= low) & (x < high), x, float("-inf"))
    write_pivots(reals, snap_pivots(x, guess, low, config.ULP_STEP), low, top, config.ULP_STEP)
