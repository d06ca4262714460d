"""Finds the threshold of a row among its collected logits; draws a row whose kept set was collected as a whole.

Reads at most 8192 ids and their logits, which it copies, and then the copy some ten times; one program does it. Sums
of weights are integers, in units of 2 ** -48: the order of the list, which differs from run to run, changes none of
them. A set that is too large for the list, or that begins below it, is left to passes that weigh.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.bracket import Bracket
from tokendraw_triton_gumbel.kernels.large_set.bracket_draw import draw_from_bracket
from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum, load_column
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLUMNS,
    COUNT_COLUMN,
    FIND_KTH,
    FIND_LARGER,
    FIND_NUCLEUS,
    FLOOR_THEN_NUCLEUS,
    GOAL,
    GOAL_BEFORE,
    HIGH_COLUMN,
    KTH_THEN_NUCLEUS,
    LOW,
    LOWER_LIMIT,
    MASS,
    MAX_COLLECTED,
    MAX_LOGIT,
    NUM_COLLECTED,
    P_REST,
    ROUND,
    SCALE,
    SLOT,
    STATE_INTS,
    STATE_REALS,
    TARGET_MAX,
    UNIT_COLUMN,
    K,
    P,
)
from tokendraw_triton_gumbel.kernels.large_set.search.value_edge import (
    AT_ONCE,
    UNITS,
    find_edge,
    missing_amount,
    survey_from,
)
from tokendraw_triton_gumbel.kernels.large_set.work_queue import announce_pass, finish_row
from tokendraw_triton_gumbel.kernels.shared.least_kept import least_kept
from tokendraw_triton_gumbel.kernels.shared.row_params import LEAST_KEPT
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_TILE_UNITS = tl.constexpr(2.0**48)
"""Units in the weight of the largest logit, of the weights of tiles: sums of integers do not depend on the order."""


@triton.jit(noinline=True)
def _copy_logits(base, collected, count, values):
    """Write the ``count`` collected logits as float32 to ``values``."""
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        token = tl.load(collected + i, mask=i < count, other=0)
        tl.store(values + i, tl.load(base + token, mask=i < count).to(tl.float32), mask=i < count)
        start += AT_ONCE
    tl.debug_barrier()


@triton.jit(noinline=True)
def find_bracket_edge(
    base, results, reals, ints, tiles, scratch, threshold_out, log_kept, config: tl.constexpr
):
    """Find the threshold of a nucleus among the collected logits of its bracket; return whether the list held all.

    :param results: :class:`~.argument_groups.PassResults`, with ``collected`` of this row.
    :param scratch: the :class:`~.argument_groups.SearchScratch` of the program.
    """
    count = tl.load(ints + NUM_COLLECTED)
    fits = (count <= MAX_COLLECTED).to(tl.int32)
    if fits > 0:
        _copy_logits(base, results.collected, count, scratch.logits)
        max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
        low, high_column = tl.load(reals + LOW), tl.load(ints + HIGH_COLUMN)
        above = column_sum(results.columns, high_column, 0, tiles, config.TILES)
        by_mass = tl.full((), 1, tl.int32)
        target = missing_amount(tl.load(reals + TARGET_MAX), above, by_mass)
        edge = find_edge(scratch.logits, count, low, target, max_logit, scale, config.ULP_STEP, BY_MASS=True)
        _, mass, _ = survey_from(scratch.logits, count, edge, max_logit, scale)
        tl.store(threshold_out, edge)
        kept_mass = (above.to(tl.float64) + mass.to(tl.float64) / UNITS).to(tl.float32)
        tl.store(log_kept, tl.log(tl.minimum(kept_mass / tl.load(reals + MASS), 1.0)))
    return fits


@triton.jit
def _find_set_threshold(values, count, reals, ints, ULP_STEP: tl.constexpr):
    """Return (the threshold of a row; whether the collected logits contain the kept set)."""
    max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
    goal = tl.load(ints + GOAL_BEFORE)
    k = tl.load(ints + K)
    is_guess = (tl.load(reals + LOW) > tl.load(reals + LOWER_LIMIT)).to(tl.int32)
    is_kth = ((goal == FIND_KTH) | (goal == KTH_THEN_NUCLEUS)).to(tl.int32)
    is_larger = (goal == FIND_LARGER).to(tl.int32)
    threshold = tl.load(reals + LOW)
    # Without a filter that ends above the list, its low end is the threshold.
    is_found = 1 - is_guess
    is_too_short = is_kth * is_guess * (count < k).to(tl.int32)
    if is_kth + is_larger > 0:
        if count >= k:
            number = k.to(tl.int64)
            threshold = find_edge(values, count, threshold, number, max_logit, scale, ULP_STEP, BY_MASS=False)
            is_found = tl.full((), 1, tl.int32)
    if (goal == FIND_NUCLEUS) | (goal == KTH_THEN_NUCLEUS) | (goal == FLOOR_THEN_NUCLEUS) | (is_larger > 0):
        _, total, _ = survey_from(values, count, threshold, max_logit, scale)
        mass = total.to(tl.float64)
        if (goal == FIND_NUCLEUS) | (goal == FIND_LARGER):
            # The row's whole mass, not only what a list could hold: p of it may still be within the list. At most
            # 2 ** 21 ids weigh 2 ** 55 units, which an int64 holds.
            mass = tl.load(reals + MASS).to(tl.float64) * UNITS
        p = tl.load(reals + P).to(tl.float64) + tl.load(reals + P_REST).to(tl.float64)
        target = tl.ceil(p * mass).to(tl.int64)
        if (total >= target).to(tl.int32) * (1 - is_too_short) > 0:
            edge = find_edge(values, count, threshold, target, max_logit, scale, ULP_STEP, BY_MASS=True)
            threshold = tl.maximum(threshold, edge)
            is_found = tl.full((), 1, tl.int32)
        elif (is_larger == 0).to(tl.int32) * is_guess > 0:
            is_found = tl.full((), 0, tl.int32)
    return tl.minimum(threshold, max_logit), is_found


@triton.jit(noinline=True)
def _weigh_tiles(results, values, count, threshold, reals, slot, high_column, tiles, TILES: tl.constexpr):
    """Write the weight of each tile from the threshold upwards into the first column of a slot.

    :param values: the ``count`` collected logits; ``high_column`` is that of the weights above them, or -1.
    :param slot: its units are 0.
    """
    max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
    weights = results.columns + slot.to(tl.int64) * tiles * COLUMNS
    units = weights.to(tl.pointer_type(tl.int64)) + UNIT_COLUMN
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        tile = tl.load(results.collected + i, mask=i < count, other=0) // TILE_SIZE
        amount = (weigh(x, max_logit, scale) * _TILE_UNITS).to(tl.int64)
        tl.atomic_add(
            units + tile * (COLUMNS // 2), amount, mask=(i < count) & (x >= threshold), sem="relaxed"
        )
        start += AT_ONCE
    tl.debug_barrier()
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    total = (
        tl.load(units + tile * (COLUMNS // 2), mask=inside, other=0, volatile=True).to(tl.float32)
        / _TILE_UNITS
    )
    tl.store(
        weights + tile * COLUMNS, load_column(results.columns, high_column, tiles, TILES) + total, mask=inside
    )
    tl.debug_barrier()


@triton.jit(noinline=True)
def find_kth(source, results, reals, ints, tiles, scratch, low, high_column, config: tl.constexpr):
    """Find the k-th value among the collected logits of its bracket; return (the value, whether the list held all).

    Writes the weights of the tiles from there upwards into the first column of the row's slot, and the number of logits
    into the first of its counts.
    """
    count = tl.load(ints + NUM_COLLECTED)
    fits = (count <= MAX_COLLECTED).to(tl.int32)
    threshold = low
    if fits > 0:
        _copy_logits(source.base, results.collected, count, scratch.logits)
        max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
        above = column_sum(results.columns, high_column, COUNT_COLUMN, tiles, config.TILES)
        by_mass = tl.full((), 0, tl.int32)
        target = missing_amount(tl.load(ints + K).to(tl.float32), above, by_mass)
        threshold = find_edge(
            scratch.logits, count, low, target, max_logit, scale, config.ULP_STEP, BY_MASS=False
        )
        _, _, number = survey_from(scratch.logits, count, threshold, max_logit, scale)
        slot = tl.load(ints + SLOT)
        _weigh_tiles(results, scratch.logits, count, threshold, reals, slot, high_column, tiles, config.TILES)
        tile = tl.arange(0, config.TILES)
        numbers = results.columns + slot.to(tl.int64) * tiles * COLUMNS + COUNT_COLUMN
        tl.store(
            numbers + tile * COLUMNS,
            tl.where(tile == 0, above + number.to(tl.float32), 0.0),
            mask=tile < tiles,
        )
        tl.debug_barrier()
    return threshold, fits


@triton.jit(noinline=True)
def finish_collected_set(
    source, row, rows, statistics, tiles, scratch, queue, state, results, flags, out, config: tl.constexpr
):
    """Draw the row if its kept set was collected; otherwise announce the pass that weighs around the first pivots.

    The parameters are those of :func:`~..finish_pass.finish_pass`.
    """
    reals = state.reals + row.to(tl.int64) * STATE_REALS
    ints = state.ints + row.to(tl.int64) * STATE_INTS
    count = tl.load(ints + NUM_COLLECTED)
    slot = tl.load(ints + SLOT)
    threshold = tl.load(reals + LOW)
    is_found = tl.full((), 0, tl.int32)
    if count <= MAX_COLLECTED:
        _copy_logits(source.base, results.collected, count, scratch.logits)
        threshold, is_found = _find_set_threshold(scratch.logits, count, reals, ints, config.ULP_STEP)
    if is_found > 0:
        no_column = tl.full((), -1, tl.int32)
        _weigh_tiles(results, scratch.logits, count, threshold, reals, slot, no_column, tiles, config.TILES)
        bracket = Bracket(threshold, threshold, slot * COLUMNS, slot * COLUMNS)
        is_exact = tl.full((), 1, tl.int32)
        draw_from_bracket(
            source, statistics, tiles, bracket, is_exact, reals, ints, results.columns, flags, out, config
        )
        if (flags & LEAST_KEPT) != 0:
            max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
            least, _, _ = survey_from(scratch.logits, count, threshold, max_logit, scale)
            tl.store(out.least_kept, least_kept(source, statistics.maxima, tiles, least, is_exact))
        finish_row(queue)
    else:
        tl.store(reals + LOW, tl.load(reals + LOWER_LIMIT))
        tl.store(ints + GOAL, tl.load(ints + GOAL_BEFORE))
        tl.store(ints + ROUND, 1)
        announce_pass(queue, row, rows)
