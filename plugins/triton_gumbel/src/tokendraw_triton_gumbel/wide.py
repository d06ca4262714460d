"""Launch 3, the draw of rows that keep many tokens: about one more read of each, by many programs at once.

Of a row that was left to it, it reads a sample of 2048 logits, then every logit once, then one tile. The sample places
four pivots around the threshold; the pass weighs every tile above each of them (writes 32 bytes a tile), which proves a
bracket. A bracket is nearly always enough to know the draw: the tile and the token that win are the same wherever in the
bracket the threshold lies. Where they are not, a second pass has its pivots inside the bracket, and so on; if all else
fails, or where the threshold itself is wanted, one program finds it (:mod:`.search`). Rows of which one threshold
depends on another go there at once.

Work is handed out by a ticket: first the samples, then the parts of the passes, as they come up. A program waits only
for programs that run already, so the launch ends whether or not all of them fit the device at once. Without a row to
draw it ends at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.draw import ROUNDS
from tokendraw_triton_gumbel.passes import COLUMNS, NOTES, PLAN, TICKETS, await_pass, weigh_part
from tokendraw_triton_gumbel.settle import settle

_LEAST_PARTS = tl.constexpr(4)
"""Of a row, so that the last programs do not keep the others waiting for long."""


@triton.jit(do_not_specialize=["tiles", "flags", "total_rows"])
def draw_wide(
    logits,
    row_stride,
    vocab_size,
    maxima,
    sums,
    tiles,
    temperature,
    row_index,
    seeds,
    seeded,
    fresh,
    positions,
    top_k,
    top_p,
    min_p,
    joint,
    flags,
    listed,
    values,
    flagged,
    queue,
    ready,
    arrivals,
    plans,
    notes,
    partials,
    token_ids,
    floors,
    log_kept,
    total_rows,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    STEP: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: whatever its tickets say.

    :param listed: [programs, TILES] int32 of scratch, ``values`` [programs, CAPACITY] float32.
    :param arrivals: [passes] int32 of scratch, with ROUNDS passes a row, ``plans`` [passes, PLAN] float32, ``notes``
        [passes, NOTES] int32, ``partials`` [passes + programs, tiles, COLUMNS] float32.
    :param STEP: from one value of the logits' dtype to the next, in the order of float32.

    The others as :func:`~tokendraw_triton_gumbel.draw.draw_rows` takes them.
    """
    rows = tl.load(queue)
    if rows > 0:
        program = tl.program_id(0)
        groups = (tiles + WARPS - 1) // WARPS
        parts = tl.minimum(tl.maximum(tl.num_programs(0) // rows, _LEAST_PARTS), groups)
        span = (groups + parts - 1) // parts
        parts = (groups + span - 1) // span
        listed += program.to(tl.int64) * TILES
        values += program.to(tl.int64) * CAPACITY
        own_pass = total_rows * ROUNDS + program
        busy = tl.full((), 1, tl.int32)
        while busy > 0:
            ticket = tl.atomic_add(queue + TICKETS, 1, sem="relaxed")
            is_sample = (ticket < rows).to(tl.int32)
            index = tl.where(is_sample > 0, 0, (ticket - rows) // parts)
            if is_sample == 0:
                busy = await_pass(queue, ready, index, rows, total_rows * ROUNDS, PTX)
            if busy > 0:
                row = tl.load(flagged + ticket, mask=is_sample > 0, other=0)
                row = tl.where(
                    is_sample > 0, row, tl.load(notes + index * NOTES, mask=is_sample == 0, other=0)
                )
                base = logits + row.to(tl.int64) * row_stride
                settled = is_sample
                if is_sample == 0:
                    group = ((ticket - rows) % parts) * span
                    settled = weigh_part(
                        base,
                        vocab_size,
                        group,
                        tl.minimum(group + span, groups),
                        tiles,
                        plans + index.to(tl.int64) * PLAN,
                        notes + index.to(tl.int64) * NOTES,
                        partials + index.to(tl.int64) * tiles * COLUMNS,
                        arrivals + index,
                        parts,
                        WARPS,
                        VECTOR,
                        PTX,
                    )
                if settled > 0:
                    settle(
                        logits,
                        row_stride,
                        vocab_size,
                        maxima,
                        sums,
                        tiles,
                        temperature,
                        row_index,
                        seeds,
                        seeded,
                        fresh,
                        positions,
                        top_k,
                        top_p,
                        min_p,
                        joint,
                        flags,
                        row,
                        is_sample,
                        index,
                        listed,
                        values,
                        queue,
                        ready,
                        arrivals,
                        plans,
                        notes,
                        partials,
                        own_pass,
                        token_ids,
                        floors,
                        log_kept,
                        FP64,
                        TILES,
                        CAPACITY,
                        WARPS,
                        VECTOR,
                        STEP,
                    )
