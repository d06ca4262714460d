"""Decides, in the program that ends a pass over a row, what follows: the draw, another pass, or a search of the row.

Reads 16 bytes a tile that the pass has left, or 32, and what :mod:`.bracket_draw` says to draw; before another pass a
sample of 2048 logits. What :mod:`.search.few_left` and :mod:`.search.threshold_search` read, they say.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.bracket import Bracket, bracket_after_pass, store_bracket
from tokendraw_triton_gumbel.kernels.large_set.bracket_draw import draw_from_bracket
from tokendraw_triton_gumbel.kernels.large_set.columns import free_slot
from tokendraw_triton_gumbel.kernels.large_set.next_pass import may_collect, place_pivots, start_nucleus
from tokendraw_triton_gumbel.kernels.large_set.passes.collect_pass import keep_collected
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECT,
    COLUMNS,
    FIND_NUCLEUS,
    FLOOR_THEN_NUCLEUS,
    GOAL,
    GOAL_BEFORE,
    KTH_THEN_NUCLEUS,
    ROUND,
    SLOT,
    SLOTS,
    STATE_INTS,
    STATE_REALS,
    TARGET_MAX,
    TARGET_MIN,
    TOP,
)
from tokendraw_triton_gumbel.kernels.large_set.search.exact_threshold import find_threshold
from tokendraw_triton_gumbel.kernels.large_set.search.few_left import few_are_left, find_among_few
from tokendraw_triton_gumbel.kernels.large_set.work_queue import announce_pass, finish_row
from tokendraw_triton_gumbel.kernels.shared.queue_layout import ROUNDS
from tokendraw_triton_gumbel.kernels.shared.row_params import EXACT


@triton.jit(noinline=True)
def settle_row(
    source,
    row,
    rows,
    statistics,
    tiles,
    scratch,
    queue,
    state,
    results,
    parts,
    flags,
    out,
    config: tl.constexpr,
):
    """Draw a row if that is known after its pass, announce another pass if it is not, or search it.

    Where the threshold itself is wanted, and the draw is known without it, what lies in the bracket is collected.

    :param source: the :class:`~.row_values.Row`; ``row`` its number; ``rows`` how many passes are the first of their
        row.
    :param statistics: the :class:`~.argument_groups.TileStatistics` of the row, ``out`` its
        :class:`~.argument_groups.Drawn`.
    :param results: :class:`~.argument_groups.PassResults`, of which ``collected`` is that of the row.
    :param parts: how many parts a later pass has.
    """
    TILES: tl.constexpr = config.TILES
    columns = results.columns
    reals = state.reals + row.to(tl.int64) * STATE_REALS
    ints = state.ints + row.to(tl.int64) * STATE_INTS
    goal = tl.load(ints + GOAL)
    weighed = (goal != COLLECT).to(tl.int32)
    goal = tl.where(weighed > 0, goal, tl.load(ints + GOAL_BEFORE))
    number = tl.load(ints + ROUND)
    bracket, exact = bracket_after_pass(columns, tiles, reals, ints, goal, weighed, config)
    low, high, low_column, high_column = bracket.low, bracket.high, bracket.low_column, bracket.high_column
    top = tl.load(reals + TOP)
    target_min, target_max = tl.load(reals + TARGET_MIN), tl.load(reals + TARGET_MAX)
    is_first = ((goal == KTH_THEN_NUCLEUS) | (goal == FLOOR_THEN_NUCLEUS)).to(tl.int32)
    ready_to_draw = weighed * tl.where(is_first > 0, exact * (low >= top).to(tl.int32), 1)
    drawn = tl.full((), 0, tl.int32)
    if weighed == 0:
        drawn = keep_collected(
            source.base,
            results,
            reals,
            ints,
            tiles,
            parts,
            low,
            high,
            high_column,
            target_max,
            out.floors,
            out.log_kept,
            TILES,
            config.ULP_STEP,
        )
    if ready_to_draw > 0:
        drawn = draw_from_bracket(
            source, statistics, tiles, bracket, exact, reals, ints, columns, flags, out, config
        )
    collecting = tl.full((), 0, tl.int32)
    if ((flags & EXACT) != 0).to(tl.int32) * weighed * drawn * (exact == 0).to(tl.int32) > 0:
        # The token is known, but not the threshold.
        drawn = tl.full((), 0, tl.int32)
        bracketed = ((low_column >= 0) & (high_column >= 0) & (number + 1 < ROUNDS)).to(tl.int32)
        if bracketed * (goal == FIND_NUCLEUS).to(tl.int32) * (target_min == target_max).to(tl.int32) > 0:
            collecting = may_collect(columns, bracket, tiles, reals, TILES)
    if drawn == 0:
        number += 1
        few = few_are_left(columns, bracket, goal, number, tiles, reals, ints, config)
        collecting *= (few == 0).to(tl.int32)
        again = (number < ROUNDS) & (few == 0)
        bracketed = ((low_column >= 0) & (high_column >= 0) & (number > 1)).to(tl.int32)
        if is_first * (exact + bracketed) > 0:
            start_nucleus(
                source, statistics.granules, columns, bracket, exact, goal, tiles, reals, ints, config
            )
            goal = tl.full((), FIND_NUCLEUS, tl.int32)
            high = tl.full((), float("inf"), tl.float32)
            high_column = tl.full((), -1, tl.int32)
        elif collecting > 0:
            tl.store(ints + GOAL_BEFORE, goal)
            goal = tl.full((), COLLECT, tl.int32)
        elif again:
            place_pivots(source, columns, bracket, goal, tiles, reals, ints, config)
        store_bracket(reals, ints, low, high, low_column, high_column)
        tl.store(ints + GOAL, goal)
        tl.store(ints + ROUND, number)
        free = free_slot(row * SLOTS, low_column, high_column)
        tl.store(ints + SLOT, free)
        if again:
            announce_pass(queue, row, rows)
        else:
            tl.debug_barrier()
            floor, found = low, few > 0
            if few > 0:
                floor, found = find_among_few(source, bracket, tiles, reals, ints, columns, scratch, config)
            if found == 0:
                floor = find_threshold(
                    source, statistics.maxima, tiles, reals, ints, columns, scratch, config
                )
            known = Bracket(floor, floor, free * COLUMNS, free * COLUMNS)
            exact = tl.full((), 1, tl.int32)
            drawn = draw_from_bracket(
                source, statistics, tiles, known, exact, reals, ints, columns, flags, out, config
            )
    if drawn > 0:
        finish_row(queue)
