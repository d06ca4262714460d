"""The launch that draws from kept sets with many tokens, of the rows that the draw announced."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels import large_set_passes as passes
from tokendraw_triton_gumbel.kernels.bracket import (
    Bracket,
    bracket_after_pass,
    draw_from_bracket,
    store_bracket,
)
from tokendraw_triton_gumbel.kernels.large_set_passes import (
    COLUMNS,
    MAX_COLLECTED,
    QUEUE_COUNTERS,
    ROUNDS,
    SLOTS,
    STATE_INTS,
    STATE_REALS,
    LargeRow,
    PassResults,
    SearchScratch,
    announce_pass,
    arrive,
    await_pass,
    counts_logits,
    draw_ticket,
    finish_row,
    free_slot,
    may_collect,
    pass_over_part,
    place_pivots,
    row_sum,
    start_nucleus,
)
from tokendraw_triton_gumbel.kernels.large_set_search import (
    bracket_fits_capacity,
    find_bracket_edge,
    find_bracket_threshold,
    find_kth,
    find_threshold,
    finish_collected_set,
)
from tokendraw_triton_gumbel.kernels.rows import (
    EXACT,
    LEAST_KEPT,
    MANY_EXACT,
    ROW_EXACT,
    DraftRows,
    DrawResults,
    row_logits,
)
from tokendraw_triton_gumbel.kernels.tile_pass import TileLaunches
from tokendraw_triton_gumbel.kernels.values import GRANULES_PER_TILE, least_kept
from tokendraw_triton_gumbel.launch import DrawArguments, Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import PER_CALL, PER_PROGRAM, Scratch, Target, Variant


class LargeSetConfig(NamedTuple):
    """Constants of launch 3, the draw of large sets."""

    FP64: bool
    TILES: int
    EXACT_PARTS: int
    """Parts of a row in later passes if the flags say EXACT, at most 16."""
    WARPS: int
    """Warps of a program, and tiles read at once."""
    VECTOR: int
    IS_ALIGNED: bool
    """Whether every row begins at a multiple of 16 bytes."""
    ULP_STEP: int
    IS_NVIDIA: bool


# Decides, in the program that ends a pass over a row, how to continue: draw, announce another pass, or search the
# row.
#
# Reads 16 or 32 bytes a tile that the pass wrote, and what :mod:`.large_set_passes` reads; before another pass a sample
# of 2048 logits. :mod:`.large_set_search` states its own reads.

MOST_PASSES = passes.ROUNDS
"""Passes of a row: each is announced in a round of the queue of its own."""
_MAX_SET = tl.constexpr(7680)
"""Upper limit of logits from the bracket's low end upwards, for a list of all of them: in larger lists one program
searches for longer than passes take."""


@triton.jit(noinline=True)
def finish_pass(row, rows, scratch, queue, flags, out, config: tl.constexpr):
    """Draw the row if its bracket decides the token; otherwise announce another pass, or search the row.

    The next pass collects the logits from the bracket's low end upwards if these are few and two filters end among
    them. It collects the logits in the bracket if these are few and the k-th value is searched for, or if the flags ask
    for the threshold and only the token is known.

    :param row: :class:`~.large_set_passes.LargeRow`; ``rows`` is the number of rows, and of first passes.
    :param out: :class:`~.rows.DrawResults` of the row.
    """
    TILES: tl.constexpr = config.TILES
    reals, ints = row.reals, row.ints
    goal = tl.load(ints + passes.GOAL)
    is_weighing = (goal != passes.COLLECT_BRACKET).to(tl.int32)
    goal = tl.where(is_weighing > 0, goal, tl.load(ints + passes.GOAL_BEFORE))
    num_passes = tl.load(ints + passes.ROUND)
    bracket, is_exact = bracket_after_pass(row, goal, is_weighing, config)
    low, high, low_column, high_column = bracket.low, bracket.high, bracket.low_column, bracket.high_column
    max_logit = tl.load(reals + passes.MAX_LOGIT)
    target_min, target_max = tl.load(reals + passes.TARGET_MIN), tl.load(reals + passes.TARGET_MAX)
    is_first = ((goal == passes.KTH_THEN_NUCLEUS) | (goal == passes.FLOOR_THEN_NUCLEUS)).to(tl.int32)
    is_ready = is_weighing * tl.where(is_first > 0, is_exact * (low >= max_logit).to(tl.int32), 1)
    is_drawn = tl.full((), 0, tl.int32)
    is_value = 1 - is_weighing  # a threshold from a list is a logit, one from pivots perhaps not
    if is_weighing == 0:
        if goal == passes.FIND_NUCLEUS:
            is_drawn = find_bracket_edge(row, scratch, out, config)
        else:
            kth, is_exact = find_kth(row, scratch, low, high_column, config)
            if is_exact > 0:
                low, high = kth, kth
                low_column = tl.load(ints + passes.SLOT) * passes.COLUMNS
                high_column = low_column
                bracket = Bracket(low, high, low_column, high_column)
            is_ready = is_exact * (goal == passes.FIND_KTH).to(tl.int32)
    if is_ready > 0:
        is_drawn = draw_from_bracket(row, bracket, is_exact, flags, out, config)
    is_collecting = tl.full((), 0, tl.int32)
    if ((flags & EXACT) != 0).to(tl.int32) * is_weighing * is_drawn * (is_exact == 0).to(tl.int32) > 0:
        # The token is known, but not the threshold.
        is_drawn = tl.full((), 0, tl.int32)
        is_bracketed = ((low_column >= 0) & (high_column >= 0) & (num_passes + 1 < MOST_PASSES)).to(tl.int32)
        if (
            is_bracketed
            * (goal == passes.FIND_NUCLEUS).to(tl.int32)
            * (target_min == target_max).to(tl.int32)
            > 0
        ):
            is_collecting = may_collect(row, bracket, TILES)
    collecting_goal = tl.full((), passes.COLLECT_BRACKET, tl.int32)
    if counts_logits(goal).to(tl.int32) * is_weighing * (1 - is_drawn) * (1 - is_exact) > 0:
        if low_column >= 0:
            num_kept = row_sum(row, low_column, passes.COUNT_COLUMN, TILES)
            if (goal != passes.FIND_KTH) & (num_kept <= _MAX_SET):
                # One program finds the ends of both filters in the list of the entire set.
                collecting_goal = tl.full((), passes.COLLECT_SET, tl.int32)
                is_collecting = tl.full((), 1, tl.int32)
            elif goal != passes.FIND_LARGER:
                num_inside = num_kept - row_sum(row, high_column, passes.COUNT_COLUMN, TILES)
                is_collecting = (num_inside <= passes.MAX_COLLECTED).to(tl.int32)
    if is_drawn == 0:
        num_passes += 1
        fits_capacity = bracket_fits_capacity(row, bracket, goal, num_passes, config)
        is_continued = (num_passes < MOST_PASSES) & (fits_capacity == 0)
        is_collecting *= is_continued.to(tl.int32)
        is_bracketed = ((low_column >= 0) & (high_column >= 0) & (num_passes > 1)).to(tl.int32)
        if is_collecting > 0:
            tl.store(ints + passes.GOAL_BEFORE, goal)
            tl.store(ints + passes.NUM_COLLECTED, 0)
            goal = collecting_goal
            if goal == passes.COLLECT_SET:
                tl.store(reals + passes.LOWER_LIMIT, low)
                high = tl.full((), float("inf"), tl.float32)
                high_column = tl.full((), -1, tl.int32)
        elif is_first * (is_exact + is_bracketed) > 0:
            start_nucleus(row, bracket, is_exact, goal, config)
            goal = tl.full((), passes.FIND_NUCLEUS, tl.int32)
            high = tl.full((), float("inf"), tl.float32)
            high_column = tl.full((), -1, tl.int32)
        elif is_continued:
            place_pivots(row, bracket, goal, config)
        store_bracket(row, low, high, low_column, high_column)
        tl.store(ints + passes.GOAL, goal)
        tl.store(ints + passes.ROUND, num_passes)
        free_columns = free_slot(row.number.to(tl.int32) * passes.SLOTS, low_column, high_column)
        tl.store(ints + passes.SLOT, free_columns)
        if is_continued:
            announce_pass(queue, row.number.to(tl.int32), rows)
        else:
            tl.debug_barrier()  # the state was written, and is read by other threads
            threshold, is_found = low, fits_capacity > 0
            if fits_capacity > 0:
                threshold, is_found = find_bracket_threshold(row, bracket, scratch, config)
            if is_found == 0:
                threshold = find_threshold(row, scratch, config)
            is_value = tl.full((), 1, tl.int32)
            exact_bracket = Bracket(
                threshold, threshold, free_columns * passes.COLUMNS, free_columns * passes.COLUMNS
            )
            is_exact = tl.full((), 1, tl.int32)
            is_drawn = draw_from_bracket(row, exact_bracket, is_exact, flags, out, config)
    if is_drawn > 0:
        if (flags & LEAST_KEPT) != 0:
            tl.debug_barrier()  # the threshold was written
            threshold = tl.load(out.threshold)
            least = least_kept(row.source, row.maxima, row.tiles, threshold, is_value)
            tl.store(out.least_kept, least)
        finish_row(queue)


# Launch 3, the draw of rows that keep many tokens: many programs at once read each row about once more.
#
# A row with few logits above a proven or guessed bound is collected (:mod:`.large_set_search`): reads the
# granules that reach the bound. Of other rows reads every logit once, then one tile. Launch 2 has guessed four pivots
# around the threshold; the pass weighs every tile above each pivot (writes 16 bytes a tile, or 32), which proves a
# bracket. The bracket nearly always decides the draw: see :mod:`.large_set_passes`. Otherwise a second pass has its
# pivots inside the bracket, and so on, until the bracket holds few logits, among which one program finds the
# threshold (:mod:`.large_set_search`). As a last resort one program searches the row
# (:mod:`.large_set_search`). Where top-p counts the mass that another filter leaves, passes for that filter
# come first; a bracket of the mass is enough for the nucleus too.
#
# Tickets hand out the work (:mod:`.large_set_passes`): first the parts of the first passes, then parts of later passes
# in the order of their announcement. Without a row to draw the launch ends at once.

_MIN_PARTS = tl.constexpr(2)
"""Least number of parts of a row: smaller parts shorten the wait for the last program."""


@triton.jit
def _parts_of(groups, parts):
    """Divide groups of tiles into about ``parts`` parts; return (groups a part, number of parts)."""
    span = (groups + parts - 1) // parts
    return span, (groups + span - 1) // span


@triton.jit(do_not_specialize=["counts", "flags"])
def draw_large_sets(
    logits,
    drafts,
    counts,
    statistics,
    flags,
    scratch,
    queue,
    state,
    results,
    out,
    config: tl.constexpr,
):
    """Each program draws tickets until none is left: reads its part of a pass; the last part finishes the pass.

    The groups are those of :func:`~.row_draw.draw_rows`, and these:
    """
    rows = tl.load(queue.counters)
    if rows > 0:
        program = tl.program_id(0).to(tl.int64)
        tiles = counts.tiles
        groups = (tiles + config.WARPS - 1) // config.WARPS
        parts = tl.minimum(tl.maximum(tl.num_programs(0) // rows, _MIN_PARTS), groups)
        span, parts = _parts_of(groups, parts)
        # If the flags ask for thresholds, nearly all rows take one more pass, which collects.
        later_parts = tl.where(
            (flags & (EXACT | MANY_EXACT)) != 0, config.EXACT_PARTS, passes.MAX_LATER_PARTS
        )
        later_span, later_parts = _parts_of(groups, later_parts)
        program_scratch = SearchScratch(
            scratch.tiles + program * config.TILES,
            scratch.logits + program * passes.MAX_COLLECTED,
        )
        row_plus_one = tl.full((), 1, tl.int32)
        while row_plus_one > 0:
            ticket = draw_ticket(queue)
            is_later = ticket >= rows * parts
            ticket = tl.where(is_later, ticket - rows * parts, ticket)
            all_parts = tl.where(is_later, later_parts, parts)
            step = tl.where(is_later, later_span, span)
            if is_later:
                index = rows + ticket // all_parts
                row_plus_one = await_pass(queue, index, rows, counts.rows * passes.ROUNDS, config.IS_NVIDIA)
            else:
                row_plus_one = tl.load(queue.announced + ticket // all_parts)
            if row_plus_one > 0:
                number = (row_plus_one - 1).to(tl.int64)
                group = (ticket % all_parts) * step
                row = LargeRow(
                    row_logits(number, logits, drafts, counts),
                    number,
                    statistics.maxima + number * tiles,
                    statistics.sums + number * tiles,
                    statistics.granules + number * tiles * GRANULES_PER_TILE,
                    tiles,
                    state.reals + number * passes.STATE_REALS,
                    state.ints + number * passes.STATE_INTS,
                    results.columns,
                    results.collected + number * passes.MAX_COLLECTED,
                )
                goal = tl.load(row.ints + passes.GOAL)
                end_group = tl.minimum(group + step, groups)
                pass_over_part(row, goal, group, end_group, program_scratch, config)
                if arrive(queue, number, all_parts) > 0:
                    row_out = DrawResults(
                        out.token_ids + number,
                        None,
                        out.threshold + number,
                        out.log_kept + number,
                        out.least_kept + number,
                    )
                    # The launch after the draw reads nothing of a draft's least kept logit.
                    row_flags = tl.where(number < counts.target_rows, flags, flags & ~LEAST_KEPT)
                    row_flags |= tl.load(row.ints + passes.IS_EXACT, mask=(flags & ROW_EXACT) != 0, other=0)
                    if goal == passes.COLLECT_SET:
                        finish_collected_set(row, rows, program_scratch, queue, row_flags, row_out, config)
                    else:
                        finish_pass(row, rows, program_scratch, queue, row_flags, row_out, config)


# The host side: constants, scratch and arguments of the launch.


class LargeSetLaunch:
    """The launch of a variant with filters, and its scratch."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches) -> None:
        configuration, real, whole = variant.configuration, torch.float32, torch.int32
        queue = (whole, QUEUE_COUNTERS.value, PER_CALL), (whole, ROUNDS.value), (whole, 1)
        self.queue = scratch.fields(*queue)
        self.state = scratch.fields((real, STATE_REALS.value), (whole, STATE_INTS.value))
        searched = (whole, tiles.count_limit, PER_PROGRAM), (real, MAX_COLLECTED.value, PER_PROGRAM)
        self._search = scratch.fields(*searched)
        columns = SLOTS.value * tiles.count * COLUMNS.value
        self._results = scratch.fields((real, columns), (whole, MAX_COLLECTED.value))
        config = LargeSetConfig(
            FP64=target.fp64,
            TILES=tiles.count_limit,
            EXACT_PARTS=configuration.large_set_exact_parts,
            WARPS=configuration.large_set_warps,
            VECTOR=variant.logits.vector,
            IS_ALIGNED=variant.is_aligned,
            ULP_STEP=variant.logits.ulp_step,
            IS_NVIDIA=target.is_nvidia,
        )
        options = target.options(configuration.large_set_warps, configuration.large_set_registers)
        self._launch = Launch(draw_large_sets, {"config": config}, options)

    def step(self, arguments: LaunchArguments, draw: DrawArguments) -> Step:
        """Return the launch: one kernel, with drafts and without, where the target stands in for them."""
        logits, drafts, counts, statistics, _, flags, _, queue, state, results, *_ = draw
        source, scratch = logits if drafts.base is None else drafts, arguments.scratch
        others = group(DraftRows, (source.base, source.row_stride, None))
        passes = group(PassResults, self._results(scratch))
        work = group(SearchScratch, self._search(scratch)), queue, state, passes, results
        grid = arguments.geometry.large_set_grid
        return self._launch, grid, (logits, others, counts, statistics, flags, *work)
