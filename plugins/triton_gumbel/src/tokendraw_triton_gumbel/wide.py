"""Launch 3, the draw of rows that keep many tokens: about one more read of each, by many programs at once.

Of a row that was left to it, it reads every logit once, then one tile. Four pivots around the threshold were placed by a
sample; the pass weighs every tile above each of them (writes 16 bytes a tile, or 32), which proves a bracket. A bracket
is nearly always enough to know the draw: the tile and the token that win are the same wherever in the bracket the
threshold lies. Where they are not, a second pass has its pivots inside the bracket, and so on; if all else fails, one
program finds the threshold (:mod:`.finish`). Where top-p counts the mass that another filter leaves, passes for that
one come first, and a bracket of the mass does for the nucleus as well.

Work is handed out by a ticket: first the parts of the first passes, then those of later ones, as they come up. A
program waits only for programs that run already, so the launch ends whether or not all of them fit the device at once.
Without a row to draw it ends at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.pairs import base_of
from tokendraw_triton_gumbel.passes import (
    LATER_PARTS,
    NOTES,
    PLAN,
    SEGMENT,
    TICKETS,
    await_pass,
    weigh_part,
)
from tokendraw_triton_gumbel.settle import settle
from tokendraw_triton_gumbel.tiles import ROUNDS

_LEAST_PARTS = tl.constexpr(2)
"""Of a row, so that the last programs do not keep the others waiting for long."""


@triton.jit
def _parts_of(groups, parts):
    """(How many groups of tiles a part holds, how many parts there are), of about ``parts``."""
    span = (groups + parts - 1) // parts
    return span, (groups + span - 1) // span


@triton.jit(do_not_specialize=["tiles", "flags", "total_rows", "split"])
def draw_wide(
    logits,
    row_stride,
    vocab_size,
    maxima,
    sums,
    tiles,
    flags,
    listed,
    values,
    queue,
    ready,
    arrivals,
    plans,
    notes,
    partials,
    near,
    token_ids,
    floors,
    log_kept,
    total_rows,
    drafts,
    draft_stride,
    split,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    BY: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: whatever its tickets say.

    :param listed: [programs, TILES] int32 of scratch, ``values`` [programs, CAPACITY] float32.
    :param ready: [rows, ROUNDS] int32: 1 more than the row of each pass, in the order in which they come up.
    :param plans: [rows, PLAN] float32, and ``notes`` [rows, NOTES] int32: see :mod:`.passes`.
    :param partials: [rows, SLOTS, tiles, COLUMNS] float32 of scratch; ``arrivals`` [rows] int32.
    :param near: [rows, LATER_PARTS, SEGMENT] int32 of scratch where ``flags`` says EXACT.
    :param WARPS: of the program, and tiles that it reads at once; ``BY`` from one value of the logits' dtype to the next, in the
        order of float32.

    The others as :func:`~tokendraw_triton_gumbel.draw.draw_rows` takes them.
    """
    rows = tl.load(queue)
    if rows > 0:
        program = tl.program_id(0)
        groups = (tiles + WARPS - 1) // WARPS
        parts = tl.minimum(tl.maximum(tl.num_programs(0) // rows, _LEAST_PARTS), groups)
        span, parts = _parts_of(groups, parts)
        later_span, later_parts = _parts_of(groups, LATER_PARTS)
        listed += program.to(tl.int64) * TILES
        values += program.to(tl.int64) * CAPACITY
        busy = tl.full((), 1, tl.int32)
        while busy > 0:
            ticket = tl.atomic_add(queue + TICKETS, 1, sem="relaxed")
            is_later = ticket >= rows * parts
            ticket = tl.where(is_later, ticket - rows * parts, ticket)
            all_parts = tl.where(is_later, later_parts, parts)
            step = tl.where(is_later, later_span, span)
            if is_later:
                busy = await_pass(queue, ready, rows + ticket // all_parts, rows, total_rows * ROUNDS, PTX)
            else:
                busy = tl.load(ready + ticket // all_parts)
            if busy > 0:
                row = (busy - 1).to(tl.int64)
                base = base_of(row, logits, row_stride, drafts, draft_stride, split)
                group = (ticket % all_parts) * step
                is_last = weigh_part(
                    base,
                    vocab_size,
                    group,
                    tl.minimum(group + step, groups),
                    tiles,
                    plans + row * PLAN,
                    notes + row * NOTES,
                    partials,
                    near + row * LATER_PARTS * SEGMENT,
                    ticket % all_parts,
                    arrivals + row,
                    all_parts,
                    WARPS,
                    VECTOR,
                    PTX,
                )
                if is_last > 0:
                    settle(
                        base,
                        vocab_size,
                        maxima + row * tiles,
                        sums + row * tiles,
                        tiles,
                        flags,
                        row.to(tl.int32),
                        rows,
                        listed,
                        values,
                        queue,
                        ready,
                        arrivals,
                        plans,
                        notes,
                        partials,
                        near,
                        later_parts,
                        token_ids,
                        floors,
                        log_kept,
                        FP64,
                        TILES,
                        CAPACITY,
                        WARPS,
                        VECTOR,
                        BY,
                    )
