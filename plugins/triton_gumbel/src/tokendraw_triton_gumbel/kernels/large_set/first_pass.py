"""Begins the draw of a large set: writes down what is known of the row, with the pivots of its first pass.

Reads what a guess takes, writes 192 bytes a row. The programs of the launch for large sets find everything there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.first_guess import write_guess
from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot, load_pivots, write_pivots
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    CAREFUL,
    FIND_KTH,
    FIND_LARGER,
    FIND_NUCLEUS,
    FLOOR_THEN_NUCLEUS,
    GOAL,
    HIGH,
    HIGH_COLUMN,
    INVERSE,
    KTH_INSIDE,
    KTH_THEN_NUCLEUS,
    LOW,
    LOW_COLUMN,
    MASS,
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
    TOP,
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
    number,
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
    """Write down what is known of a row, and announce its first pass.

    :param source: the :class:`~.row_values.Row`; ``granules`` [number] its maxima, ``row`` its number, ``scale`` its
        :class:`~.row_values.RowScale`.
    :param bound: proven; where it is the largest logit, it is the threshold.
    :param by_maxima: whether those show the edge of the nucleus, where top-p alone filters.
    """
    reals = state.reals + row.to(tl.int64) * STATE_REALS
    ints = state.ints + row.to(tl.int64) * STATE_INTS
    k, p, top = filters.k, filters.p, scale.top
    low = tl.maximum(filters.min_p_floor, LOWEST)
    goal = tl.full((), WEIGH_ONLY, tl.int32)
    if bound >= top:
        low = top
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
        write_pivots(reals, PerPivot(low, low, low, low), low, top, ULP_STEP)
    else:
        by_mass = goal == FIND_NUCLEUS
        wanted = tl.where(by_mass, target, k.to(tl.float32))
        by_maxima = by_mass & by_maxima
        write_guess(source, granules, number, scale, low, wanted, by_mass, by_maxima, reals, ULP_STEP)
        if goal == FIND_LARGER:
            other = reals + OTHER_PIVOTS
            by_mass = goal == FIND_LARGER
            write_guess(source, granules, number, scale, low, target, by_mass, by_maxima, other, ULP_STEP)
            tl.debug_barrier()
            pivots = load_pivots(other)
            if pivots.p1 > tl.load(reals + 1):
                tl.debug_barrier()
                write_pivots(reals, pivots, low, top, ULP_STEP)
    share = p.to(tl.float32)
    tl.store(reals + LOW, low)
    tl.store(reals + HIGH, float("inf"))
    tl.store(reals + TOP, top)
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
    tl.store(ints + CAREFUL, has_nan.to(tl.int32) + (steady(top, scale.scale) == 0).to(tl.int32))
    tl.store(queue.arrivals + row, 0)
    announce_row(queue, row)
