"""Decides, in the program that ends a pass over a row, how to continue: draw, announce another pass, or search the row.

Reads 16 or 32 bytes a tile that the pass wrote, and what :mod:`.bracket_draw` reads; before another pass a sample of
2048 logits. :mod:`.search.bracket_threshold` and :mod:`.search.threshold_search` state their own reads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.bracket import Bracket, bracket_after_pass, store_bracket
from tokendraw_triton_gumbel.kernels.large_set.bracket_draw import draw_from_bracket
from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum, free_slot
from tokendraw_triton_gumbel.kernels.large_set.next_pass import may_collect, place_pivots, start_nucleus
from tokendraw_triton_gumbel.kernels.large_set.passes.weigh_pass import counts_logits
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECT_BRACKET,
    COLLECT_SET,
    COLUMNS,
    COUNT_COLUMN,
    FIND_KTH,
    FIND_LARGER,
    FIND_NUCLEUS,
    FLOOR_THEN_NUCLEUS,
    GOAL,
    GOAL_BEFORE,
    KTH_THEN_NUCLEUS,
    LOWER_LIMIT,
    MAX_COLLECTED,
    MAX_LOGIT,
    NUM_COLLECTED,
    ROUND,
    SLOT,
    SLOTS,
    STATE_INTS,
    STATE_REALS,
    TARGET_MAX,
    TARGET_MIN,
)
from tokendraw_triton_gumbel.kernels.large_set.search.bracket_threshold import (
    bracket_fits_capacity,
    find_bracket_threshold,
)
from tokendraw_triton_gumbel.kernels.large_set.search.collected_set import find_bracket_edge, find_kth
from tokendraw_triton_gumbel.kernels.large_set.search.exact_threshold import find_threshold
from tokendraw_triton_gumbel.kernels.large_set.work_queue import announce_pass, finish_row
from tokendraw_triton_gumbel.kernels.shared.least_kept import least_kept
from tokendraw_triton_gumbel.kernels.shared.queue_layout import ROUNDS
from tokendraw_triton_gumbel.kernels.shared.row_params import EXACT, LEAST_KEPT

_MAX_SET = tl.constexpr(7680)
"""Upper limit of logits from the bracket's low end upwards, for a list of all of them: in larger lists one program
searches for longer than passes take."""


@triton.jit(noinline=True)
def finish_pass(
    source,
    row,
    rows,
    statistics,
    tiles,
    scratch,
    queue,
    state,
    results,
    flags,
    out,
    config: tl.constexpr,
):
    """Draw the row if its bracket decides the token; otherwise announce another pass, or search the row.

    The next pass collects the logits from the bracket's low end upwards if these are few and two filters end among
    them. It collects the logits in the bracket if these are few and the k-th value is searched for, or if the flags ask
    for the threshold and only the token is known.

    :param source: the :class:`.RowAddress`; ``row`` its number; ``rows`` the number of rows, and of first passes.
    :param statistics: the :class:`~.argument_groups.TileStatistics` of the row, ``out`` its
        :class:`~.argument_groups.DrawResults`.
    :param results: :class:`~.argument_groups.PassResults`, with ``collected`` of this row.
    """
    TILES: tl.constexpr = config.TILES
    columns = results.columns
    reals = state.reals + row.to(tl.int64) * STATE_REALS
    ints = state.ints + row.to(tl.int64) * STATE_INTS
    goal = tl.load(ints + GOAL)
    is_weighing = (goal != COLLECT_BRACKET).to(tl.int32)
    goal = tl.where(is_weighing > 0, goal, tl.load(ints + GOAL_BEFORE))
    num_passes = tl.load(ints + ROUND)
    bracket, is_exact = bracket_after_pass(columns, tiles, reals, ints, goal, is_weighing, config)
    low, high, low_column, high_column = bracket.low, bracket.high, bracket.low_column, bracket.high_column
    max_logit = tl.load(reals + MAX_LOGIT)
    target_min, target_max = tl.load(reals + TARGET_MIN), tl.load(reals + TARGET_MAX)
    is_first = ((goal == KTH_THEN_NUCLEUS) | (goal == FLOOR_THEN_NUCLEUS)).to(tl.int32)
    is_ready = is_weighing * tl.where(is_first > 0, is_exact * (low >= max_logit).to(tl.int32), 1)
    is_drawn = tl.full((), 0, tl.int32)
    is_value = 1 - is_weighing  # a threshold from a list is a logit, one from pivots perhaps not
    if is_weighing == 0:
        if goal == FIND_NUCLEUS:
            is_drawn = find_bracket_edge(
                source.base, results, reals, ints, tiles, scratch, out.threshold, out.log_kept, config
            )
        else:
            kth, is_exact = find_kth(source, results, reals, ints, tiles, scratch, low, high_column, config)
            if is_exact > 0:
                low, high = kth, kth
                low_column = tl.load(ints + SLOT) * COLUMNS
                high_column = low_column
                bracket = Bracket(low, high, low_column, high_column)
            is_ready = is_exact * (goal == FIND_KTH).to(tl.int32)
    if is_ready > 0:
        is_drawn = draw_from_bracket(
            source, statistics, tiles, bracket, is_exact, reals, ints, columns, flags, out, config
        )
    is_collecting = tl.full((), 0, tl.int32)
    if ((flags & EXACT) != 0).to(tl.int32) * is_weighing * is_drawn * (is_exact == 0).to(tl.int32) > 0:
        # The token is known, but not the threshold.
        is_drawn = tl.full((), 0, tl.int32)
        is_bracketed = ((low_column >= 0) & (high_column >= 0) & (num_passes + 1 < ROUNDS)).to(tl.int32)
        if is_bracketed * (goal == FIND_NUCLEUS).to(tl.int32) * (target_min == target_max).to(tl.int32) > 0:
            is_collecting = may_collect(columns, bracket, tiles, reals, TILES)
    collecting_goal = tl.full((), COLLECT_BRACKET, tl.int32)
    if counts_logits(goal).to(tl.int32) * is_weighing * (1 - is_drawn) * (1 - is_exact) > 0:
        if low_column >= 0:
            num_kept = column_sum(columns, low_column, COUNT_COLUMN, tiles, TILES)
            if (goal != FIND_KTH) & (num_kept <= _MAX_SET):
                # One program finds the ends of both filters in the list of the entire set.
                collecting_goal = tl.full((), COLLECT_SET, tl.int32)
                is_collecting = tl.full((), 1, tl.int32)
            elif goal != FIND_LARGER:
                num_inside = num_kept - column_sum(columns, high_column, COUNT_COLUMN, tiles, TILES)
                is_collecting = (num_inside <= MAX_COLLECTED).to(tl.int32)
    if is_drawn == 0:
        num_passes += 1
        fits_capacity = bracket_fits_capacity(columns, bracket, goal, num_passes, tiles, reals, ints, config)
        is_continued = (num_passes < ROUNDS) & (fits_capacity == 0)
        is_collecting *= is_continued.to(tl.int32)
        is_bracketed = ((low_column >= 0) & (high_column >= 0) & (num_passes > 1)).to(tl.int32)
        if is_collecting > 0:
            tl.store(ints + GOAL_BEFORE, goal)
            tl.store(ints + NUM_COLLECTED, 0)
            goal = collecting_goal
            if goal == COLLECT_SET:
                tl.store(reals + LOWER_LIMIT, low)
                high = tl.full((), float("inf"), tl.float32)
                high_column = tl.full((), -1, tl.int32)
        elif is_first * (is_exact + is_bracketed) > 0:
            start_nucleus(
                source, statistics.granules, columns, bracket, is_exact, goal, tiles, reals, ints, config
            )
            goal = tl.full((), FIND_NUCLEUS, tl.int32)
            high = tl.full((), float("inf"), tl.float32)
            high_column = tl.full((), -1, tl.int32)
        elif is_continued:
            place_pivots(source, columns, bracket, goal, tiles, reals, ints, config)
        store_bracket(reals, ints, low, high, low_column, high_column)
        tl.store(ints + GOAL, goal)
        tl.store(ints + ROUND, num_passes)
        free_columns = free_slot(row * SLOTS, low_column, high_column)
        tl.store(ints + SLOT, free_columns)
        if is_continued:
            announce_pass(queue, row, rows)
        else:
            tl.debug_barrier()
            threshold, is_found = low, fits_capacity > 0
            if fits_capacity > 0:
                threshold, is_found = find_bracket_threshold(
                    source, bracket, tiles, reals, ints, columns, scratch, config
                )
            if is_found == 0:
                threshold = find_threshold(
                    source, statistics.maxima, tiles, reals, ints, columns, scratch, config
                )
            is_value = tl.full((), 1, tl.int32)
            exact_bracket = Bracket(threshold, threshold, free_columns * COLUMNS, free_columns * COLUMNS)
            is_exact = tl.full((), 1, tl.int32)
            is_drawn = draw_from_bracket(
                source, statistics, tiles, exact_bracket, is_exact, reals, ints, columns, flags, out, config
            )
    if is_drawn > 0:
        if (flags & LEAST_KEPT) != 0:
            tl.debug_barrier()  # the threshold was written
            threshold = tl.load(out.threshold)
            least = least_kept(source, statistics.maxima, tiles, threshold, is_value)
            tl.store(out.least_kept, least)
        finish_row(queue)
