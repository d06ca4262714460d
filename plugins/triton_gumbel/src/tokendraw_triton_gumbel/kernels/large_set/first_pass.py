"""Begins the draw of a large set: writes the state of the row, with the pivots of its first pass.

Reads what :mod:`.first_pivots` reads, writes 192 bytes a row: all that launch 3 needs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.first_pivots import write_first_pivots
from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot, load_pivots, write_pivots
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    FIND_KTH,
    FIND_LARGER,
    FIND_NUCLEUS,
    FLOOR_THEN_NUCLEUS,
    GOAL,
    HIGH,
    HIGH_COLUMN,
    INVERSE,
    IS_EXTREME,
    KTH_INSIDE,
    KTH_THEN_NUCLEUS,
    LOW,
    LOW_COLUMN,
    MASS,
    MAX_LOGIT,
    MIN_P_FLOOR,
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
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.weights import steady


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
    :param bound: a proven bound; a bound equal to the largest logit is the threshold.
    :param by_maxima: whether to guess from the maxima of granules, where top-p alone filters.
    """
    reals = state.reals + row.to(tl.int64) * STATE_REALS
    ints = state.ints + row.to(tl.int64) * STATE_INTS
    k, p, max_logit = filters.k, filters.p, scale.max_logit
    low = tl.maximum(filters.min_p_floor, LOWEST)
    goal = tl.full((), WEIGH_ONLY, tl.int32)
    if bound >= max_logit:
        low = max_logit
    elif p < 1:
        if k > 0:
            goal = tl.where(filters.joint, FIND_LARGER, KTH_THEN_NUCLEUS)
        else:
            has_floor = (filters.min_p_floor > float("-inf")) & (filters.joint == 0)
            goal = tl.where(has_floor, FLOOR_THEN_NUCLEUS, FIND_NUCLEUS)
    elif k > 0:
        goal = tl.full((), FIND_KTH, tl.int32)
    target = (p * scale.mass.to(tl.float64)).to(tl.float32)
    if (goal == WEIGH_ONLY) | (goal == FLOOR_THEN_NUCLEUS):
        write_pivots(reals, PerPivot(low, low, low, low), low, max_logit, ULP_STEP)
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
    share = p.to(tl.float32)
    tl.store(reals + LOW, low)
    tl.store(reals + HIGH, float("inf"))
    tl.store(reals + MAX_LOGIT, max_logit)
    tl.store(reals + SCALE, scale.scale)
    tl.store(reals + INVERSE, scale.inverse)
    tl.store(reals + MASS, scale.mass)
    tl.store(reals + TARGET_MIN, target)
    tl.store(reals + TARGET_MAX, target)
    tl.store(reals + P, share)
    tl.store(reals + P_REST, (p - share.to(tl.float64)).to(tl.float32))
    tl.store(reals + MIN_P_FLOOR, filters.min_p_floor)
    tl.store(ints + GOAL, goal)
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
