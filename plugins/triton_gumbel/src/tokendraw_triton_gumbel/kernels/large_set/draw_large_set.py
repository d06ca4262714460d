"""Launch 3, the draw of rows that keep many tokens: about one more read of each, by many programs at once.

Of a row that was left to it, it reads every logit once, then one tile. Four pivots around the threshold were guessed;
the pass weighs every tile above each of them (writes 16 bytes a tile, or 32), which proves a bracket. A bracket is
nearly always enough to know the draw: see :mod:`.bracket_draw`. Where it is not, a second pass has its pivots inside
the bracket, and so on, until few logits are left in it, among which one program finds the threshold
(:mod:`.search.few_left`). If all else fails, one searches the row (:mod:`.search.exact_threshold`).
Where top-p counts the mass that another filter leaves, passes for that one come first, and a bracket of the mass does
for the nucleus too.

Work is handed out by tickets (:mod:`.work_queue`): first the parts of the first passes, then those of later ones, as
they come up. Without a row to draw the launch ends at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.after_pass import settle_row
from tokendraw_triton_gumbel.kernels.large_set.passes.weigh_pass import pass_over_part
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    LATER_PARTS,
    MOST_COLLECTED,
    STATE_INTS,
    STATE_REALS,
)
from tokendraw_triton_gumbel.kernels.large_set.work_queue import arrive, await_pass, draw_ticket
from tokendraw_triton_gumbel.kernels.shared.argument_groups import (
    Drawn,
    PassResults,
    SearchScratch,
    TileStatistics,
)
from tokendraw_triton_gumbel.kernels.shared.queue_layout import ROUNDS
from tokendraw_triton_gumbel.kernels.shared.row_address import row_logits
from tokendraw_triton_gumbel.kernels.shared.row_params import EXACT
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE

_LEAST_PARTS = tl.constexpr(2)
"""Parts of a row, at least, so that the last programs do not keep the others waiting for long."""


@triton.jit
def _parts_of(groups, parts):
    """Return (how many groups of tiles a part holds, how many parts there are), of about ``parts``."""
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
    """One program does whatever its tickets say.

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
        parts = tl.minimum(tl.maximum(tl.num_programs(0) // rows, _LEAST_PARTS), groups)
        span, parts = _parts_of(groups, parts)
        # Where thresholds are wanted, nearly all rows take one more pass, which collects.
        later_parts = tl.where((flags & EXACT) != 0, config.EXACT_PARTS, LATER_PARTS)
        later_span, later_parts = _parts_of(groups, later_parts)
        own = SearchScratch(
            scratch.tiles + program * config.TILES, scratch.logits + program * config.CAPACITY
        )
        busy = tl.full((), 1, tl.int32)
        while busy > 0:
            ticket = draw_ticket(queue)
            is_later = ticket >= rows * parts
            ticket = tl.where(is_later, ticket - rows * parts, ticket)
            all_parts = tl.where(is_later, later_parts, parts)
            step = tl.where(is_later, later_span, span)
            if is_later:
                index = rows + ticket // all_parts
                busy = await_pass(queue, index, rows, counts.rows * ROUNDS, config.IS_NVIDIA)
            else:
                busy = tl.load(queue.announced + ticket // all_parts)
            if busy > 0:
                row = (busy - 1).to(tl.int64)
                source = row_logits(row, logits, drafts, counts)
                group = (ticket % all_parts) * step
                last = tl.minimum(group + step, groups)
                reals, ints = state.reals + row * STATE_REALS, state.ints + row * STATE_INTS
                written = PassResults(results.columns, results.collected + row * MOST_COLLECTED)
                part = ticket % all_parts
                pass_over_part(source, group, last, tiles, reals, ints, written, part, all_parts, config)
                if arrive(queue, row, all_parts) > 0:
                    settle_row(
                        source,
                        row.to(tl.int32),
                        rows,
                        TileStatistics(
                            statistics.maxima + row * tiles,
                            statistics.sums + row * tiles,
                            None,
                            statistics.granules + row * tiles * GRANULES_PER_TILE,
                        ),
                        tiles,
                        own,
                        queue,
                        state,
                        written,
                        later_parts,
                        flags,
                        Drawn(out.token_ids + row, None, out.floors + row, out.log_kept + row),
                        config,
                    )
