"""What follows a pass over a wide row, by the program that came last: the draw, another pass, or a search.

Reads 16 bytes a tile that the pass has left, or 32, and what :mod:`.within` says to draw; before another pass a sample of
2048 logits. A search reads what :mod:`.search` says.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.begin import write_guess
from tokendraw_triton_gumbel.finish import find_exactly
from tokendraw_triton_gumbel.guess import next_pivots, sample_of, snapped
from tokendraw_triton_gumbel.order import key_of, value_of, weigh
from tokendraw_triton_gumbel.passes import (
    AT_LEAST,
    AT_MOST,
    BY_COUNT,
    BY_MASS,
    COLLECT,
    COLLECTED,
    COLUMNS,
    COUNT_FIRST,
    COUNT_HIGH,
    COUNT_INSIDE,
    COUNT_LOW,
    COUNT_OVER,
    DONE,
    EITHER,
    FLOOR_FIRST,
    HIGH,
    HIGH_COLUMN,
    KIND,
    KIND_BEFORE,
    KNOWN,
    LATER,
    LATER_PARTS,
    LOW,
    LOW_COLUMN,
    MASS,
    NOTES,
    PLAN,
    ROUND,
    SCALE,
    SEGMENT,
    SHARE,
    SHARE_REST,
    SLOT,
    SLOTS,
    TOP,
    K,
    column_of,
    four_sums,
    write_pivots,
)
from tokendraw_triton_gumbel.request import EXACT
from tokendraw_triton_gumbel.tiles import ROUNDS
from tokendraw_triton_gumbel.within import draw_within

_FILLED = tl.constexpr(0.75)
"""Of the room for what is collected: the parts of a row hold more or less of it."""


@triton.jit(noinline=True)
def settle(
    base,
    vocab_size,
    maxima,
    sums,
    tiles,
    flags,
    row,
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
    parts,
    token_ids,
    floors,
    log_kept,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    BY: tl.constexpr,
):
    """Draw the row if that is known after its pass, announce another pass if it is not, or search.

    Where the threshold itself is wanted, and the draw is known without it, what lies in the bracket is collected.

    :param maxima: [tiles] of the row, like ``sums``; ``rows`` how many passes are the first of their row, and ``parts``
        of how many parts a later one is.
    """
    plan = plans + row.to(tl.int64) * PLAN
    note = notes + row.to(tl.int64) * NOTES
    kind = tl.load(note + KIND)
    weighed = (kind != COLLECT).to(tl.int32)
    kind = tl.where(weighed > 0, kind, tl.load(note + KIND_BEFORE))
    number = tl.load(note + ROUND)
    slot = tl.load(note + SLOT)
    low_column = tl.load(note + LOW_COLUMN)
    high_column = tl.load(note + HIGH_COLUMN)
    k = tl.load(note + K)
    p0 = tl.load(plan)
    p1 = tl.load(plan + 1)
    p2 = tl.load(plan + 2)
    p3 = tl.load(plan + 3)
    low = tl.load(plan + LOW)
    high = tl.load(plan + HIGH)
    top = tl.load(plan + TOP)
    at_least = tl.load(plan + AT_LEAST)
    at_most = tl.load(plan + AT_MOST)
    counts = ((kind == BY_COUNT) | (kind == EITHER) | (kind == COUNT_FIRST)).to(tl.int32)
    given = ((kind == KNOWN) | (kind == FLOOR_FIRST)).to(tl.int32)
    w0, w1, w2, w3 = four_sums(partials, slot, 0, tiles, TILES)
    n0, n1, n2, n3 = w0, w1, w2, w3
    if counts > 0:
        n0, n1, n2, n3 = four_sums(partials, slot, 4, tiles, TILES)
    # From which pivots upwards there is enough: 1, or 0; or -1, where that is not known.
    e0 = _judged(w0, n0, at_least, at_most, k, kind, given)
    e1 = _judged(w1, n1, at_least, at_most, k, kind, given)
    e2 = _judged(w2, n2, at_least, at_most, k, kind, given)
    e3 = _judged(w3, n3, at_least, at_most, k, kind, given)
    column = tl.where(e0 > 0, 0, tl.where(e1 > 0, 1, tl.where(e2 > 0, 2, tl.where(e3 > 0, 3, -1))))
    lower = tl.where(e0 > 0, p0, tl.where(e1 > 0, p1, tl.where(e2 > 0, p2, p3)))
    reached = tl.where(e0 > 0, n0, tl.where(e1 > 0, n1, tl.where(e2 > 0, n2, n3)))
    higher = weighed * ((column >= 0) & (lower >= low)).to(tl.int32)
    low_column = tl.where(higher > 0, slot * COLUMNS + column, low_column)
    low = tl.where(higher > 0, lower, low)
    exactly_k = higher * counts * (kind != EITHER).to(tl.int32) * (reached == k.to(tl.float32)).to(tl.int32)
    column = tl.where(e3 == 0, 3, tl.where(e2 == 0, 2, tl.where(e1 == 0, 1, tl.where(e0 == 0, 0, -1))))
    upper = tl.where(e3 == 0, p3, tl.where(e2 == 0, p2, tl.where(e1 == 0, p1, p0)))
    less = weighed * ((column >= 0) & (upper <= high)).to(tl.int32)
    high_column = tl.where(less > 0, slot * COLUMNS + column, high_column)
    high = tl.where(less > 0, upper, high)
    one_value = key_of(tl.minimum(low, top)).to(tl.int64) + BY >= key_of(high).to(tl.int64)
    exact = given + exactly_k + one_value.to(tl.int32) + (low >= top).to(tl.int32)
    exact = ((exact > 0) & (low_column >= 0)).to(tl.int32)
    # Too little from the floor of the other filters upwards, so that it is the threshold.
    at_floor = ((high_column >= 0) & (high <= low)).to(tl.int32)
    low_column = tl.where(at_floor > 0, high_column, low_column)
    exact = tl.maximum(exact, at_floor)
    is_first = ((kind == COUNT_FIRST) | (kind == FLOOR_FIRST)).to(tl.int32)
    ready_to_draw = weighed * tl.where(is_first > 0, exact * (low >= top).to(tl.int32), 1)
    drawn = tl.full((), 0, tl.int32)
    if weighed == 0:
        drawn = _keep_collected(
            base,
            near + row.to(tl.int64) * LATER_PARTS * SEGMENT,
            partials,
            plan,
            note,
            tiles,
            parts,
            low,
            high,
            high_column,
            at_most,
            floors + row,
            log_kept + row,
            TILES,
        )
    if ready_to_draw > 0:
        drawn = draw_within(
            base,
            vocab_size,
            maxima,
            sums,
            tiles,
            low,
            high,
            low_column,
            high_column,
            exact,
            plan,
            note,
            partials,
            flags,
            token_ids + row,
            floors + row,
            log_kept + row,
            FP64,
            TILES,
        )
    collecting = tl.full((), 0, tl.int32)
    if ((flags & EXACT) != 0).to(tl.int32) * weighed * drawn * (exact == 0).to(tl.int32) > 0:
        # The token is known, but not the threshold.
        drawn = tl.full((), 0, tl.int32)
        bracketed = ((low_column >= 0) & (high_column >= 0) & (number + 1 < ROUNDS)).to(tl.int32)
        if bracketed * (kind == BY_MASS).to(tl.int32) * (at_least == at_most).to(tl.int32) > 0:
            inside = _weight_at(partials, low_column, 0, TILES, tiles)
            inside -= _weight_at(partials, high_column, 0, TILES, tiles)
            lightest = weigh(low, top, tl.load(plan + SCALE))
            room = (parts * SEGMENT).to(tl.float32) * _FILLED
            collecting = (inside <= lightest * room).to(tl.int32)
    if drawn == 0:
        number += 1
        again = number < ROUNDS
        bracketed = ((low_column >= 0) & (high_column >= 0) & (number > 1)).to(tl.int32)
        if is_first * (exact + bracketed) > 0:
            # The nucleus is next, of what is at least ``low``, and as much as that weighs.
            tl.store(plan + COUNT_LOW, low)
            tl.store(plan + COUNT_HIGH, tl.where(exact > 0, low, high))
            over = _weight_at(partials, tl.where(exact > 0, low_column, high_column), 4, TILES, tiles)
            inside = _weight_at(partials, low_column, 4, TILES, tiles) - over
            tl.store(note + COUNT_OVER, tl.where(kind == COUNT_FIRST, over, 0.0).to(tl.int32))
            tl.store(note + COUNT_INSIDE, tl.where(kind == COUNT_FIRST, inside, 0.0).to(tl.int32))
            share = tl.load(plan + SHARE).to(tl.float64) + tl.load(plan + SHARE_REST).to(tl.float64)
            heaviest = _weight_at(partials, low_column, 0, TILES, tiles)
            lightest = tl.where(exact > 0, heaviest, _weight_at(partials, high_column, 0, TILES, tiles))
            at_most = (share * heaviest.to(tl.float64)).to(tl.float32)
            at_least = (share * lightest.to(tl.float64)).to(tl.float32)
            tl.store(plan + AT_LEAST, at_least)
            tl.store(plan + AT_MOST, at_most)
            kind = tl.full((), BY_MASS, tl.int32)
            high = tl.full((), float("inf"), tl.float32)
            high_column = tl.full((), -1, tl.int32)
            below = tl.load(plan + MASS) - (at_least * 0.5 + at_most * 0.5)
            write_guess(base, vocab_size, top, tl.load(plan + SCALE), low, below, kind == BY_MASS, plan, BY)
        elif collecting > 0:
            tl.store(note + KIND_BEFORE, kind)
            kind = tl.full((), COLLECT, tl.int32)
        elif again:
            offset = tl.where((kind == BY_COUNT) | (kind == COUNT_FIRST), 4, 0)
            at_low = _weight_at(partials, low_column, offset, TILES, tiles)
            at_low = tl.where((low_column >= 0) | (offset > 0), at_low, tl.load(plan + MASS))
            at_high = _weight_at(partials, high_column, offset, TILES, tiles)
            target = tl.where(offset > 0, k.to(tl.float32), at_least * 0.5 + at_most * 0.5)
            p0, p1, p2, p3 = next_pivots(
                low, high, low_column, high_column, at_low, at_high, target, top, p0 - p3
            )
            x = sample_of(base, vocab_size)
            x = tl.where((x >= low) & (x < high), x, float("-inf"))
            p0, p1, p2, p3 = snapped(x, p0, p1, p2, p3, low, BY)
            write_pivots(plan, p0, p1, p2, p3, low, top, BY)
        tl.store(plan + LOW, low)
        tl.store(plan + HIGH, high)
        tl.store(note + KIND, kind)
        tl.store(note + ROUND, number)
        tl.store(note + LOW_COLUMN, low_column)
        tl.store(note + HIGH_COLUMN, high_column)
        free = _free_slot(row * SLOTS, low_column, high_column)
        tl.store(note + SLOT, free)
        if again:
            tl.store(arrivals + row, 0)
            tl.debug_barrier()
            index = rows + tl.atomic_add(queue + LATER, 1, sem="relaxed")
            tl.atomic_xchg(ready + index, row + 1, sem="release")
        else:
            tl.debug_barrier()
            floor = find_exactly(
                base,
                vocab_size,
                maxima,
                tiles,
                plan,
                note,
                partials,
                listed,
                values,
                TILES,
                CAPACITY,
                WARPS,
                VECTOR,
            )
            drawn = draw_within(
                base,
                vocab_size,
                maxima,
                sums,
                tiles,
                floor,
                floor,
                free * COLUMNS,
                free * COLUMNS,
                tl.full((), 1, tl.int32),
                plan,
                note,
                partials,
                flags,
                token_ids + row,
                floors + row,
                log_kept + row,
                FP64,
                TILES,
            )
    if drawn > 0:
        tl.debug_barrier()
        tl.atomic_add(queue + DONE, 1, sem="release")


@triton.jit(noinline=True)
def _keep_collected(
    base,
    near,
    partials,
    plan,
    note,
    tiles,
    parts,
    low,
    high,
    high_column,
    target,
    floor_out,
    log_kept,
    TILES: tl.constexpr,
):
    """Find the threshold among what was collected of the bracket; returns whether there was room for all of it.

    :param near: [LATER_PARTS, SEGMENT] ids of the row.
    :param target: the mass that the nucleus has to reach.
    """
    i = tl.arange(0, LATER_PARTS * SEGMENT)
    count = tl.load(note + COLLECTED + i // SEGMENT, mask=i // SEGMENT < parts, other=0)
    fits = (tl.max(count, 0) <= SEGMENT).to(tl.int32)
    if fits > 0:
        top = tl.load(plan + TOP)
        token = tl.load(near + i, mask=i % SEGMENT < count, other=0)
        x = tl.load(base + token, mask=i % SEGMENT < count, other=float("-inf")).to(tl.float32)
        weight = weigh(x, top, tl.load(plan + SCALE))
        above = _weight_at(partials, high_column, 0, TILES, tl.where(high_column >= 0, tiles, 0))
        first = key_of(low).to(tl.int64)
        last = key_of(tl.minimum(high, tl.maximum(tl.max(x, 0), low))).to(tl.int64) + 1
        while last - first > 1:
            middle = first + (last - first) // 2
            reach = above + tl.sum(tl.where(x >= value_of(middle.to(tl.int32)), weight, 0.0), 0)
            first = tl.where(reach >= target, middle, first)
            last = tl.where(reach >= target, last, middle)
        floor = value_of(first.to(tl.int32))
        kept = above + tl.sum(tl.where(x >= floor, weight, 0.0), 0)
        tl.store(floor_out, floor)
        tl.store(log_kept, tl.log(kept / tl.load(plan + MASS)))
    return fits


@triton.jit
def _weight_at(partials, column, offset, TILES: tl.constexpr, tiles):
    """What the row weighs, or how many logits it has (``offset`` 4), from the pivot of a column upwards; 0 of none."""
    return tl.sum(
        column_of(partials, tl.where(column >= 0, column + offset, -1), tl.arange(0, TILES), tiles), 0
    )


@triton.jit
def _free_slot(first, low_column, high_column):
    """A slot of the row that holds neither end of the bracket."""
    low, high = low_column // COLUMNS - first, high_column // COLUMNS - first
    free = tl.where((low != 1) & (high != 1), 1, 2)
    free = tl.where((low != 0) & (high != 0), 0, free)
    return first + free


@triton.jit
def _judged(weight, count, at_least, at_most, k, kind, given):
    """Whether the row holds enough from a pivot upwards: 1, or 0; -1 where the target is not known that well."""
    by_mass = tl.where(weight >= at_most, 1, tl.where(weight < at_least, 0, -1))
    by_count = (count >= k.to(tl.float32)).to(tl.int32)
    judged = tl.where(
        kind == BY_MASS, by_mass, tl.where(kind == EITHER, tl.maximum(by_mass, by_count), by_count)
    )
    return tl.where(given > 0, 1, judged)
