"""Launch 3, the draw of rows that keep many tokens: many programs at once read each row about once more.

A row with few logits above a proven or guessed bound is collected (:mod:`.search.collected_set`): reads the granules
that reach the bound. Of other rows reads every logit once, then one tile. Launch 2 has guessed four pivots around the
threshold; the pass weighs every tile above each pivot (writes 16 bytes a tile, or 32), which proves a bracket. The
bracket nearly always decides the draw: see :mod:`.bracket_draw`. Otherwise a second pass has its pivots inside the
bracket, and so on, until the bracket holds few logits, among which one program finds the threshold
(:mod:`.search.bracket_threshold`). As a last resort one program searches the row (:mod:`.search.exact_threshold`).
Where top-p counts the mass that another filter leaves, passes for that filter come first; a bracket of the mass is
enough for the nucleus too.

Tickets hand out the work (:mod:`.work_queue`): first the parts of the first passes, then parts of later passes in the
order of their announcement. Without a row to draw the launch ends at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.finish_pass import finish_pass
from tokendraw_triton_gumbel.kernels.large_set.passes.weigh_pass import pass_over_part
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLLECT_SET,
    GOAL,
    IS_EXACT,
    MAX_COLLECTED,
    MAX_LATER_PARTS,
    STATE_INTS,
    STATE_REALS,
)
from tokendraw_triton_gumbel.kernels.large_set.search.collected_set import finish_collected_set
from tokendraw_triton_gumbel.kernels.large_set.work_queue import arrive, await_pass, draw_ticket
from tokendraw_triton_gumbel.kernels.shared.argument_groups import (
    DrawResults,
    PassResults,
    SearchScratch,
    TileStatistics,
)
from tokendraw_triton_gumbel.kernels.shared.queue_layout import ROUNDS
from tokendraw_triton_gumbel.kernels.shared.row_address import row_logits
from tokendraw_triton_gumbel.kernels.shared.row_params import EXACT, LEAST_KEPT, MANY_EXACT, ROW_EXACT
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE

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

    The groups are those of :func:`~tokendraw_triton_gumbel.kernels.row_draw.draw_rows.draw_rows`, and these:

    :param scratch: :class:`~.argument_groups.SearchScratch`.
    :param results: :class:`~.argument_groups.PassResults`.
    :param config: :class:`~.configs.LargeSetConfig`.
    """
    rows = tl.load(queue.counters)
    if rows > 0:
        program = tl.program_id(0).to(tl.int64)
        tiles = counts.tiles
        groups = (tiles + config.WARPS - 1) // config.WARPS
        parts = tl.minimum(tl.maximum(tl.num_programs(0) // rows, _MIN_PARTS), groups)
        span, parts = _parts_of(groups, parts)
        # If the flags ask for thresholds, nearly all rows take one more pass, which collects.
        later_parts = tl.where((flags & (EXACT | MANY_EXACT)) != 0, config.EXACT_PARTS, MAX_LATER_PARTS)
        later_span, later_parts = _parts_of(groups, later_parts)
        program_scratch = SearchScratch(
            scratch.tiles + program * config.TILES,
            scratch.logits + program * MAX_COLLECTED,
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
                row_plus_one = await_pass(queue, index, rows, counts.rows * ROUNDS, config.IS_NVIDIA)
            else:
                row_plus_one = tl.load(queue.announced + ticket // all_parts)
            if row_plus_one > 0:
                row = (row_plus_one - 1).to(tl.int64)
                source = row_logits(row, logits, drafts, counts)
                group = (ticket % all_parts) * step
                end_group = tl.minimum(group + step, groups)
                reals, ints = state.reals + row * STATE_REALS, state.ints + row * STATE_INTS
                row_results = PassResults(results.columns, results.collected + row * MAX_COLLECTED)
                goal = tl.load(ints + GOAL)
                granules = statistics.granules + row * tiles * GRANULES_PER_TILE
                pass_over_part(
                    source,
                    granules,
                    goal,
                    group,
                    end_group,
                    tiles,
                    reals,
                    ints,
                    row_results,
                    program_scratch,
                    config,
                )
                if arrive(queue, row, all_parts) > 0:
                    row_statistics = TileStatistics(
                        statistics.maxima + row * tiles,
                        statistics.sums + row * tiles,
                        None,
                        granules,
                        None,
                    )
                    row_out = DrawResults(
                        out.token_ids + row,
                        None,
                        out.threshold + row,
                        out.log_kept + row,
                        out.least_kept + row,
                    )
                    # The launch after the draw reads nothing of a draft's least kept logit.
                    row_flags = tl.where(row < counts.target_rows, flags, flags & ~LEAST_KEPT)
                    row_flags |= tl.load(ints + IS_EXACT, mask=(flags & ROW_EXACT) != 0, other=0)
                    if goal == COLLECT_SET:
                        finish_collected_set(
                            source,
                            row.to(tl.int32),
                            rows,
                            row_statistics,
                            tiles,
                            program_scratch,
                            queue,
                            state,
                            row_results,
                            row_flags,
                            row_out,
                            config,
                        )
                    else:
                        finish_pass(
                            source,
                            row.to(tl.int32),
                            rows,
                            row_statistics,
                            tiles,
                            program_scratch,
                            queue,
                            state,
                            row_results,
                            row_flags,
                            row_out,
                            config,
                        )
