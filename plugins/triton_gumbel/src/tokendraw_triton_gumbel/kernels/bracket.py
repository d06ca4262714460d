"""The bracket of a threshold: narrowed after each pass over a row, and the draw from it where it decides the token.

ptxas lays out functions that are not inlined in the order of their names, that of the module first, and code behind the
first 75 KB waited for its instructions for 50 to 95 % of its time where 64 multiprocessors or more ran it. So what most
rows pass through stands in a module, or has a name, that sorts before the rest: ``bracket``, ``large_set``,
``begin_pivots``. Another order of the same instructions took 2 to 7 % longer for wide nuclei of bfloat16 on an H100.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels import large_set_passes as passes
from tokendraw_triton_gumbel.kernels.large_set_passes import (
    PerPivot,
    counts_logits,
    four_sums,
    load_column,
    load_pivots,
)
from tokendraw_triton_gumbel.kernels.rows import EXACT, NoiseKey, gumbel, streams_of
from tokendraw_triton_gumbel.kernels.values import TILE_SIZE, key_of, scaled, weigh

# Bounds a row's threshold by a bracket, and narrows the bracket after each pass.


class Bracket(NamedTuple):
    """The threshold is at least ``low`` and below ``high``."""

    low: Any
    high: Any
    low_column: Any
    """The column of the tiles' weights from ``low`` upwards, or -1."""
    high_column: Any


@triton.jit
def load_bracket(row):
    """Return the bracket of a row."""
    low, high = tl.load(row.reals + passes.LOW), tl.load(row.reals + passes.HIGH)
    return Bracket(low, high, tl.load(row.ints + passes.LOW_COLUMN), tl.load(row.ints + passes.HIGH_COLUMN))


@triton.jit
def store_bracket(row, low, high, low_column, high_column):
    """Write the bracket of a row."""
    tl.store(row.reals + passes.LOW, low)
    tl.store(row.reals + passes.HIGH, high)
    tl.store(row.ints + passes.LOW_COLUMN, low_column)
    tl.store(row.ints + passes.HIGH_COLUMN, high_column)


@triton.jit
def _judge(weight, number, target_min, target_max, k, goal, is_given):
    """Compare the weight or the count from a pivot upwards with the target: 1 enough, 0 too little, -1 undecided."""
    by_mass = tl.where(weight >= target_max, 1, tl.where(weight < target_min, 0, -1))
    by_count = (number >= k.to(tl.float32)).to(tl.int32)
    either = tl.maximum(by_mass, by_count)
    verdict = tl.where(
        goal == passes.FIND_NUCLEUS, by_mass, tl.where(goal == passes.FIND_LARGER, either, by_count)
    )
    return tl.where(is_given > 0, 1, verdict)


@triton.jit
def _narrow_bracket(bracket, pivots, verdicts, numbers, slot, is_weighing):
    """Return (the bracket after a pass; whether its low end moved; the count at the lowest pivot with enough).

    :param pivots: :class:`PerPivot`, like ``verdicts`` of :func:`_judge` and ``numbers`` of logits.
    :param is_weighing: 0 if the pass weighed nothing: the bracket stays.
    """
    e0, e1, e2, e3 = verdicts.p0, verdicts.p1, verdicts.p2, verdicts.p3
    column = tl.where(e0 > 0, 0, tl.where(e1 > 0, 1, tl.where(e2 > 0, 2, tl.where(e3 > 0, 3, -1))))
    lower = tl.where(e0 > 0, pivots.p0, tl.where(e1 > 0, pivots.p1, tl.where(e2 > 0, pivots.p2, pivots.p3)))
    count_at_low = tl.where(
        e0 > 0, numbers.p0, tl.where(e1 > 0, numbers.p1, tl.where(e2 > 0, numbers.p2, numbers.p3))
    )
    low_moved = is_weighing * ((column >= 0) & (lower >= bracket.low)).to(tl.int32)
    low_column = tl.where(low_moved > 0, slot * passes.COLUMNS + column, bracket.low_column)
    low = tl.where(low_moved > 0, lower, bracket.low)
    column = tl.where(e3 == 0, 3, tl.where(e2 == 0, 2, tl.where(e1 == 0, 1, tl.where(e0 == 0, 0, -1))))
    upper = tl.where(
        e3 == 0, pivots.p3, tl.where(e2 == 0, pivots.p2, tl.where(e1 == 0, pivots.p1, pivots.p0))
    )
    high_moved = is_weighing * ((column >= 0) & (upper <= bracket.high)).to(tl.int32)
    high_column = tl.where(high_moved > 0, slot * passes.COLUMNS + column, bracket.high_column)
    high = tl.where(high_moved > 0, upper, bracket.high)
    return Bracket(low, high, low_column, high_column), low_moved, count_at_low


@triton.jit
def bracket_after_pass(row, goal, is_weighing, config: tl.constexpr):
    """Return (the bracket after a pass; whether the threshold equals the low end).

    :param is_weighing: 0 if the pass collected.
    """
    TILES: tl.constexpr = config.TILES
    columns, tiles, reals, ints = row.columns, row.tiles, row.reals, row.ints
    slot = tl.load(ints + passes.SLOT)
    k = tl.load(ints + passes.K)
    pivots = load_pivots(reals)
    max_logit = tl.load(reals + passes.MAX_LOGIT)
    target_min = tl.load(reals + passes.TARGET_MIN)
    target_max = tl.load(reals + passes.TARGET_MAX)
    counts = counts_logits(goal).to(tl.int32)
    is_given = ((goal == passes.WEIGH_ONLY) | (goal == passes.FLOOR_THEN_NUCLEUS)).to(tl.int32)
    w0, w1, w2, w3 = four_sums(columns, slot, 0, tiles, TILES)
    n0, n1, n2, n3 = w0, w1, w2, w3
    if counts > 0:
        n0, n1, n2, n3 = four_sums(columns, slot, passes.COUNT_COLUMN, tiles, TILES)
    verdicts = PerPivot(
        _judge(w0, n0, target_min, target_max, k, goal, is_given),
        _judge(w1, n1, target_min, target_max, k, goal, is_given),
        _judge(w2, n2, target_min, target_max, k, goal, is_given),
        _judge(w3, n3, target_min, target_max, k, goal, is_given),
    )
    numbers = PerPivot(n0, n1, n2, n3)
    bracket, low_moved, count_at_low = _narrow_bracket(
        load_bracket(row), pivots, verdicts, numbers, slot, is_weighing
    )
    low, high, low_column = bracket.low, bracket.high, bracket.low_column
    exactly_k = low_moved * counts * (goal != passes.FIND_LARGER).to(tl.int32)
    exactly_k *= (count_at_low == k.to(tl.float32)).to(tl.int32)
    one_value = key_of(tl.minimum(low, max_logit)).to(tl.int64) + config.ULP_STEP >= key_of(high).to(tl.int64)
    is_exact = is_given + exactly_k + one_value.to(tl.int32) + (low >= max_logit).to(tl.int32)
    is_exact = ((is_exact > 0) & (low_column >= 0)).to(tl.int32)
    # Too little mass from the floor of the other filters upwards: the floor is the threshold.
    at_floor = ((bracket.high_column >= 0) & (high <= low)).to(tl.int32)
    low_column = tl.where(at_floor > 0, bracket.high_column, low_column)
    return Bracket(low, high, low_column, bracket.high_column), tl.maximum(is_exact, at_floor)


# Draws a row from the bracket of its threshold, if every threshold in the bracket gives the same token.
#
# Reads 8 bytes a tile, 8 or 16 more that passes wrote, and one tile of logits.
#
# For every threshold in the bracket, a tile weighs at most its weight from the low end upwards, and at least its
# weight from the high end upwards. A tile wins for sure if its lower bound beats the upper bounds of all other tiles;
# a token of this tile wins for sure if it reaches the high end and beats every logit from the low end upwards.


@triton.jit(noinline=True)
def draw_from_bracket(row, bracket, is_exact, flags, out, config: tl.constexpr):
    """Draw a row if its bracket decides the token, as it does where its low end is the threshold; return whether."""
    FP64: tl.constexpr = config.FP64
    source, tiles, reals, ints = row.source, row.tiles, row.reals, row.ints
    tile = tl.arange(0, config.TILES)
    inside = tile < tiles
    max_logit = tl.load(reals + passes.MAX_LOGIT)
    inverse = tl.load(reals + passes.INVERSE)
    seed = tl.load((ints + passes.SEED).to(tl.pointer_type(tl.int64)))
    position = tl.load((ints + passes.POSITION).to(tl.pointer_type(tl.int64)))
    key = NoiseKey(seed, position)
    upper_weight = load_column(row.columns, bracket.low_column, tiles, config.TILES)
    lower_weight = upper_weight
    if is_exact == 0:
        lower_weight = load_column(row.columns, bracket.high_column, tiles, config.TILES)
    if bracket.low_column < 0:
        maximum = tl.load(row.maxima + tile, mask=inside, other=float("-inf"))
        upper_weight = tl.abs(tl.load(row.sums + tile, mask=inside, other=0.0))
        upper_weight *= weigh(maximum, max_logit, tl.load(reals + passes.SCALE))
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, FP64)
    upper = _scores(upper_weight, noise)
    lower = _scores(lower_weight, noise)
    best_score, chosen = tl.max(lower, 0, return_indices=True)
    rival = tl.max(tl.where(tile == chosen, float("-inf"), upper), 0)
    decided = tl.maximum(is_exact, (best_score > rival).to(tl.int32))
    if decided > 0:
        members = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
        x = tl.load(source.base + members, mask=members < source.vocab_size, other=float("-inf"))
        x = x.to(tl.float32)
        x = tl.where((x == x) & (x >= bracket.low), x, float("-inf"))
        score = scaled(x, max_logit, inverse, FP64) + gumbel(key, members, of_token, FP64)
        winner = chosen * TILE_SIZE + tl.argmax(score, 0)
        value = tl.load(source.base + winner).to(tl.float32)
        decided = tl.maximum(is_exact, (value >= bracket.high).to(tl.int32))
        if decided > 0:
            tl.store(out.token_ids, winner.to(tl.int64))
            if (flags & EXACT) != 0:
                tl.store(out.threshold, bracket.low)
                share = tl.sum(upper_weight, 0) / tl.load(reals + passes.MASS)
                tl.store(out.log_kept, tl.log(tl.minimum(share, 1.0)))
    return decided


@triton.jit
def _scores(weight, noise):
    has_weight = weight > 0
    return tl.where(
        has_weight, tl.log(tl.where(has_weight, weight, 1.0).to(noise.dtype)) + noise, float("-inf")
    )
