"""Begins the draw of a large set: writes the state of the row, with the pivots of its first pass.

Reads what :mod:`.first_pivots` reads, writes 192 bytes a row: all that launch 3 needs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.first_pivots import number_in_row, write_first_pivots
from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot, load_pivots, write_pivots
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECT_SET,
    FIND_KTH,
    FIND_LARGER,
    FIND_NUCLEUS,
    FLOOR,
    FLOOR_THEN_NUCLEUS,
    GOAL,
    GOAL_BEFORE,
    HIGH,
    HIGH_COLUMN,
    INVERSE,
    IS_EXTREME,
    KTH_INSIDE,
    KTH_THEN_NUCLEUS,
    LOW,
    LOW_COLUMN,
    LOWER_LIMIT,
    MASS,
    MAX_COLLECTED,
    MAX_EXPECTED,
    MAX_LOGIT,
    NUM_COLLECTED,
    OTHER_PIVOTS,
    P_REST,
    POSITION,
    ROUND,
    SCALE,
    SEED,
    SLOT,
    SLOTS,
    STATE_INTS,
    STATE_REALS,
    TARGET_MAX,
    TARGET_MIN,
    WEIGH_ONLY,
    K,
    P,
)
from tokendraw_triton_gumbel.kernels.large_set.work_queue import announce_row
from tokendraw_triton_gumbel.kernels.row_draw.bounds import bound_by_granules
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.weights import steady

_AT_ONCE = tl.constexpr(1024)
"""Granules compared at once."""
_MORE_STANDARD_ERRORS = tl.constexpr(0.67)
"""Distance of the least collected value below the last pivot, in distances of the last two pivots: 3 standard errors
each where the guess is none of a tied value."""


@triton.jit
def _add_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _expected_number(granules, num_granules, bound):
    """Return about how many logits reach a bound: each of the granules without one is as likely for any of them."""
    number = tl.full((), 0, tl.int32)
    num_reached = tl.full((), 0, tl.int32)
    start = 0
    while start < num_granules:
        g = start + tl.arange(0, _AT_ONCE)
        x = tl.load(granules + g, mask=g < num_granules, other=float("-inf")).to(tl.float32)
        part, part_reached = tl.reduce(
            ((x > float("-inf")).to(tl.int32), (x >= bound).to(tl.int32)), 0, _add_two
        )
        number += part
        num_reached += part_reached
        start += _AT_ONCE
    share_left = (number - num_reached).to(tl.float32) / number.to(tl.float32)
    return number.to(tl.float32) * -tl.log(tl.maximum(share_left, 1e-9))


@triton.jit(noinline=True)
def announce_first_pass(
    source,
    granules,
    num_granules,
    row,
    bound,
    scale,
    filters,
    has_nan,
    by_maxima,
    key,
    queue,
    state,
    ULP_STEP: tl.constexpr,
):
    """Write the state of a row, and announce its first pass.

    :param source: the :class:`.RowAddress`; ``granules`` [num_granules] its maxima, ``row`` its number, ``scale``
        its :class:`~.row_values.RowScale`.
    :param bound: a proven bound, or -inf; a bound equal to the largest logit is the threshold.
    :param by_maxima: whether to guess from the maxima of granules, where top-p alone filters.
    """
    reals = state.reals + row.to(tl.int64) * STATE_REALS
    ints = state.ints + row.to(tl.int64) * STATE_INTS
    k, p, max_logit = filters.k, filters.p, scale.max_logit
    low = tl.maximum(filters.floor, LOWEST)
    is_collected = (source.vocab_size <= MAX_EXPECTED).to(tl.int32)
    if k > 0:
        # Few granules of a large vocabulary without a logit that reaches the bound: too many logits reach it.
        number = num_granules.to(tl.float32)
        max_count = (number * (1.0 - tl.exp(-1.0 / number * MAX_EXPECTED))).to(tl.int32)
        proven_bound = bound_by_granules(
            granules, num_granules, filters.floor, max_logit, k.to(tl.int32), max_count
        )
        is_collected = tl.maximum(is_collected, (proven_bound > float("-inf")).to(tl.int32))
        low = tl.maximum(low, tl.maximum(proven_bound, bound))
    goal = tl.full((), WEIGH_ONLY, tl.int32)
    if low < max_logit:
        if p < 1:
            if k > 0:
                goal = tl.where(filters.joint, FIND_LARGER, KTH_THEN_NUCLEUS)
            else:
                has_floor = (filters.floor > float("-inf")) & (filters.joint == 0)
                goal = tl.where(has_floor, FLOOR_THEN_NUCLEUS, FIND_NUCLEUS)
        elif k > 0:
            goal = tl.full((), FIND_KTH, tl.int32)
    target = (p * scale.mass.to(tl.float64)).to(tl.float32)
    least = low
    is_given = (goal == WEIGH_ONLY) | (goal == FLOOR_THEN_NUCLEUS)
    if is_given.to(tl.int32) + is_collected > 0:
        step = tl.where(is_given, 0.0, 0.25) * (max_logit - low)
        pivots = PerPivot(low + step * 3, low + step * 2, low + step, low)
        write_pivots(reals, pivots, low, max_logit, ULP_STEP)
    else:
        by_mass = goal == FIND_NUCLEUS
        goal_amount = tl.where(by_mass, target, k.to(tl.float32))
        by_maxima = by_mass & by_maxima
        write_first_pivots(
            source, granules, num_granules, scale, low, goal_amount, by_mass, by_maxima, reals, ULP_STEP
        )
        if goal == FIND_LARGER:
            other_pivots = reals + OTHER_PIVOTS
            by_mass = goal == FIND_LARGER
            write_first_pivots(
                source, granules, num_granules, scale, low, target, by_mass, by_maxima, other_pivots, ULP_STEP
            )
            tl.debug_barrier()
            pivots = load_pivots(other_pivots)
            if pivots.p1 > tl.load(reals + 1):
                tl.debug_barrier()
                write_pivots(reals, pivots, low, max_logit, ULP_STEP)
        if by_maxima.to(tl.int32) + (k > 0).to(tl.int32) > 0:
            tl.debug_barrier()
            pivots = load_pivots(reals)
            least = pivots.p3
            if by_maxima:
                least -= (pivots.p2 - pivots.p3) * _MORE_STANDARD_ERRORS
            else:
                is_collected = (number_in_row(source, least) <= MAX_COLLECTED).to(tl.int32)
            least = tl.maximum(least, low)
    # A nucleus that a sample shows better than maxima is wide.
    is_likely = (k == 0) & ((goal != FIND_NUCLEUS) | by_maxima)
    if is_likely.to(tl.int32) * (is_collected == 0).to(tl.int32) > 0:
        # Two filters take a pass each, one alone hardly more than one.
        most = tl.where(goal == FLOOR_THEN_NUCLEUS, MAX_EXPECTED, MAX_EXPECTED // 4)
        is_collected = (_expected_number(granules, num_granules, least) <= most).to(tl.int32)
    share = p.to(tl.float32)
    tl.store(reals + LOWER_LIMIT, low)
    tl.store(reals + LOW, tl.where(is_collected > 0, least, low))
    tl.store(reals + HIGH, float("inf"))
    tl.store(reals + MAX_LOGIT, max_logit)
    tl.store(reals + SCALE, scale.scale)
    tl.store(reals + INVERSE, scale.inverse)
    tl.store(reals + MASS, scale.mass)
    tl.store(reals + TARGET_MIN, target)
    tl.store(reals + TARGET_MAX, target)
    tl.store(reals + P, share)
    tl.store(reals + P_REST, (p - share.to(tl.float64)).to(tl.float32))
    tl.store(reals + FLOOR, filters.floor)
    tl.store(ints + GOAL, tl.where(is_collected > 0, COLLECT_SET, goal))
    tl.store(ints + GOAL_BEFORE, goal)
    tl.store(ints + NUM_COLLECTED, 0)
    tl.store(ints + ROUND, 0)
    tl.store(ints + LOW_COLUMN, -1)
    tl.store(ints + HIGH_COLUMN, -1)
    tl.store(ints + SLOT, row * SLOTS)
    tl.store(ints + K, k.to(tl.int32))
    tl.store((ints + SEED).to(tl.pointer_type(tl.int64)), key.seed)
    tl.store((ints + POSITION).to(tl.pointer_type(tl.int64)), key.position)
    tl.store(ints + KTH_INSIDE, -1)
    tl.store(ints + IS_EXTREME, has_nan.to(tl.int32) + (steady(max_logit, scale.scale) == 0).to(tl.int32))
    tl.store(queue.arrivals + row, 0)
    announce_row(queue, row)
