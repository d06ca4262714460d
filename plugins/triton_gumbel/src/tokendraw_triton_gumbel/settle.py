"""What follows a sample or a pass over a wide row, by one program: the draw, another pass, or a search.

Reads 8 bytes a tile, 32 more behind a pass, and one tile of logits to draw from; 2048 logits for a sample. A search
reads what :mod:`.search` says.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.draw import ROUNDS, TILE, TOKEN
from tokendraw_triton_gumbel.guess import guess_pivots
from tokendraw_triton_gumbel.noise import gumbel
from tokendraw_triton_gumbel.order import LEAST, key_of, min_p_floor, scaled, weigh
from tokendraw_triton_gumbel.passes import (
    BY_COUNT,
    BY_MASS,
    COLUMNS,
    DONE,
    KNOWN,
    NOTES,
    PLAN,
    SEVERAL,
    announce_pass,
    column_of,
)
from tokendraw_triton_gumbel.request import EXACT, filters_of, noise_of, slot_of
from tokendraw_triton_gumbel.search import list_tiles, load_listed, mass_from, search
from tokendraw_triton_gumbel.tiles import LOG2_E, inverse_temperature, sum_tiles

_UNKNOWN = tl.constexpr(2147483647)


@triton.jit(noinline=True)
def settle(
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
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
    STEP: tl.constexpr,
):
    """What follows a sample or a pass: the draw if it is known, another pass if it is not, or a search.

    A function of its own, so that its registers are not taken from the pass.
    """
    base = logits + row.to(tl.int64) * row_stride
    slot = slot_of(row, flags, row_index)
    inverse, _ = inverse_temperature(temperature, slot)
    scale = tl.minimum(inverse * LOG2_E, 3.4e38)
    k, p, minimum, is_joint = filters_of(slot, vocab_size, flags, top_k, top_p, min_p, joint)
    seed, position = noise_of(row, slot, flags, seeds, seeded, fresh, positions)
    tile = tl.arange(0, TILES)
    offset = row.to(tl.int64) * tiles + tile
    maximum = tl.load(maxima + offset, mask=tile < tiles, other=float("-inf"))
    whole = tl.abs(tl.load(sums + offset, mask=tile < tiles, other=0.0))
    top = tl.max(maximum, 0)
    whole *= weigh(maximum, top, scale)
    degrees = tl.full((), 1.0, tl.float64)
    if temperature is not None:
        degrees = tl.load(temperature + slot).to(tl.float64)
    least = min_p_floor(top, degrees, minimum)
    mass = tl.sum(whole, 0)
    by_p = (p < 1).to(tl.int32)
    by_k = (k > 0).to(tl.int32)
    before = by_k + (least > float("-inf")).to(tl.int32) * (is_joint == 0).to(tl.int32)
    kind = tl.where(by_p > 0, tl.where(before > 0, SEVERAL, BY_MASS), tl.where(by_k > 0, BY_COUNT, KNOWN))
    target = tl.where(by_p > 0, (p * mass.to(tl.float64)).to(tl.float32), k.to(tl.float32))
    # The threshold is at least ``low`` and below ``high``; columns say what each tile keeps at most and at least.
    low = tl.maximum(least, LEAST)
    high = tl.full((), float("inf"), tl.float32)
    low_column = tl.full((), -1, tl.int32)
    high_column = tl.full((), -1, tl.int32)
    number = tl.full((), 0, tl.int32)
    exact = tl.full((), 0, tl.int32)
    again = (is_sample * (kind != SEVERAL).to(tl.int32)).to(tl.int32)
    pivots = tl.zeros((4,), tl.float32) + low
    if again > 0:
        if kind != KNOWN:
            by_mass = kind == BY_MASS
            below = ((1.0 - p) * mass.to(tl.float64)).to(tl.float32)
            aim = tl.where(by_mass, below, target)
            pivots = guess_pivots(base, vocab_size, top, scale, low, aim, by_mass)
    if is_sample == 0:
        plan = plans + index.to(tl.int64) * PLAN
        note = notes + index.to(tl.int64) * NOTES
        j = tl.arange(0, 4)
        pivots = tl.load(plan + j)
        low = tl.load(plan + 4)
        high = tl.load(plan + 5)
        number = tl.load(note + 2)
        low_column = tl.load(note + 3)
        high_column = tl.load(note + 4)
        if kind == KNOWN:
            exact = tl.full((), 1, tl.int32)
            low_column = index * COLUMNS
        else:
            columns = partials + index.to(tl.int64) * tiles * COLUMNS + tile[:, None] * COLUMNS + j[None, :]
            if kind == BY_COUNT:
                columns += 4
            weight = tl.sum(tl.load(columns, mask=(tile < tiles)[:, None], other=0.0), 0)
            low, high, low_column, high_column = _narrowed(
                pivots, weight >= target, low, high, low_column, high_column, index
            )
            exact = (low_column >= 0).to(tl.int32)
            exact *= (key_of(tl.minimum(low, top)).to(tl.int64) + STEP >= key_of(high).to(tl.int64)).to(
                tl.int32
            ) + (low >= top).to(tl.int32)
            exact = tl.minimum(exact, 1)
            if (high_column >= 0).to(tl.int32) * (high <= low).to(tl.int32) > 0:
                # Too little from the floor of the other filters upwards, so that it is the threshold.
                low_column = high_column
                exact = tl.full((), 1, tl.int32)
        wants_more = ((flags & EXACT) != 0).to(tl.int32) * (1 - exact)
        again = (number + 1 < ROUNDS).to(tl.int32)
        if wants_more == 0:
            drawn = _draw(
                base,
                vocab_size,
                whole,
                tile,
                tiles,
                mass,
                partials,
                low,
                high,
                low_column,
                high_column,
                exact,
                top,
                inverse,
                seed,
                position,
                flags,
                token_ids + row,
                floors + row,
                log_kept + row,
                FP64,
            )
            again *= 1 - drawn
            exact = drawn
        if again > 0:
            at_low = _weight_at(partials, low_column, kind, tile, tiles)
            at_low = tl.where((low_column >= 0) | (kind == BY_COUNT), at_low, mass)
            at_high = _weight_at(partials, high_column, kind, tile, tiles)
            pivots = _next_pivots(low, high, low_column, high_column, at_low, at_high, target, top, pivots)
        number += 1
    if again > 0:
        if STEP > 1:
            pivots = tl.maximum(
                pivots.to(tl.bfloat16).to(tl.float32), low
            )  # rounded, but not out of the bracket
        announce_pass(
            queue,
            ready,
            arrivals,
            plans,
            notes,
            pivots,
            low,
            high,
            top,
            scale,
            row,
            kind,
            number,
            low_column,
            high_column,
        )
    else:
        if exact == 0:
            above = _weight_at(partials, high_column, kind, tile, tiles)
            over = tl.where(kind == BY_COUNT, above, 0.0).to(tl.int32)
            between = tl.where((low_column >= 0) & (high_column >= 0), 0, _UNKNOWN)
            floor = _exact_floor(
                base,
                vocab_size,
                maximum,
                tile,
                tiles,
                mass,
                listed,
                values,
                low,
                high,
                above,
                over,
                between,
                kind,
                top,
                scale,
                least,
                k,
                p,
                is_joint,
                CAPACITY,
                WARPS,
                VECTOR,
            )
            _weigh_kept(
                base,
                vocab_size,
                maximum,
                tile,
                tiles,
                listed,
                floor,
                top,
                scale,
                partials + own_pass.to(tl.int64) * tiles * COLUMNS,
                WARPS,
                VECTOR,
            )
            _draw(
                base,
                vocab_size,
                whole,
                tile,
                tiles,
                mass,
                partials,
                floor,
                floor,
                own_pass * COLUMNS,
                own_pass * COLUMNS,
                tl.full((), 1, tl.int32),
                top,
                inverse,
                seed,
                position,
                flags,
                token_ids + row,
                floors + row,
                log_kept + row,
                FP64,
            )
        tl.debug_barrier()
        tl.atomic_add(queue + DONE, 1, sem="release")


@triton.jit
def _weight_at(partials, column, kind, tile, tiles):
    """What the row weighs, or how many logits it has, from the pivot of a column upwards; 0 if there is none."""
    counted = tl.where((kind == BY_COUNT) & (column >= 0), column + 4, column)
    return tl.sum(column_of(partials, counted, tile, tiles), 0)


@triton.jit
def _narrowed(pivots, enough, low, high, low_column, high_column, index):
    """The bracket and its columns, after a pass has told of which pivots ``enough`` lies above."""
    j = tl.arange(0, 4)
    lower = tl.max(tl.where(enough, pivots, float("-inf")), 0)
    upper = tl.min(tl.where(enough, float("inf"), pivots), 0)
    column = tl.max(tl.where(enough & (pivots == lower), j, -1), 0)
    low_column = tl.where((column >= 0) & (lower >= low), index * COLUMNS + column, low_column)
    low = tl.maximum(low, lower)
    column = tl.max(tl.where((enough == 0) & (pivots == upper), j, -1), 0)
    high_column = tl.where((column >= 0) & (upper <= high), index * COLUMNS + column, high_column)
    return low, tl.minimum(high, upper), low_column, high_column


@triton.jit
def _next_pivots(low, high, low_column, high_column, at_low, at_high, target, top, pivots):
    """Four pivots inside the bracket, [4]: around where a straight line meets the target, or towards an open end."""
    j = tl.arange(0, 4)
    width = tl.max(pivots, 0) - tl.min(pivots, 0)
    share = (at_low - target) / tl.maximum(at_low - at_high, 1e-30)
    share = tl.minimum(tl.maximum(share, 0.0), 1.0)
    by = tl.where(j == 0, 0.15, tl.where(j == 1, 0.03, tl.where(j == 2, -0.03, -0.15)))
    inner = low + (high - low) * tl.minimum(tl.maximum(share + by, 0.01), 0.99)
    reach = tl.maximum(width, 1e-30) * tl.exp2(2.0 * j.to(tl.float32))
    downwards = tl.minimum(high, top) - reach
    upwards = tl.minimum(low + reach, top)
    open_low = (low_column < 0) & (high_column >= 0)
    open_high = high_column < 0
    return tl.maximum(tl.where(open_high, upwards, tl.where(open_low, downwards, inner)), low)


@triton.jit
def _draw(
    base,
    vocab_size,
    whole,
    tile,
    tiles,
    mass,
    partials,
    low,
    high,
    low_column,
    high_column,
    exact,
    top,
    inverse,
    seed,
    position,
    flags,
    token_id,
    floor_out,
    log_kept,
    FP64: tl.constexpr,
):
    """Draw if the bracket decides who wins; returns whether it does. If ``exact``, the threshold is ``low``."""
    most = tl.where(low_column >= 0, column_of(partials, low_column, tile, tiles), whole)
    at_least = tl.where(exact > 0, most, column_of(partials, high_column, tile, tiles))
    noise = gumbel(seed, position, tile, TILE, FP64)
    upper = _scores(most, noise)
    lower = _scores(at_least, noise)
    best = tl.max(lower, 0)
    chosen = tl.argmax(lower, 0)
    rival = tl.max(tl.where(tile == chosen, float("-inf"), upper), 0)
    members = chosen * 1024 + tl.arange(0, 1024)
    x = tl.load(base + members, mask=members < vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= low), x, float("-inf"))
    winner = tl.argmax(scaled(x, top, inverse, FP64) + gumbel(seed, position, members, TOKEN, FP64), 0)
    value = tl.sum(tl.where(tl.arange(0, 1024) == winner, x, 0.0), 0)
    decided = (best > rival).to(tl.int32) * (value >= high).to(tl.int32)
    decided = tl.where(exact > 0, 1, decided)
    if decided > 0:
        tl.store(token_id, (chosen * 1024 + winner).to(tl.int64))
        if (flags & EXACT) != 0:
            tl.store(floor_out, low)
            tl.store(log_kept, tl.log(tl.sum(most, 0) / mass))
    return decided


@triton.jit
def _scores(weight, noise):
    some = weight > 0
    return tl.where(some, tl.log(tl.where(some, weight, 1.0).to(noise.dtype)) + noise, float("-inf"))


@triton.jit
def _exact_floor(
    base,
    vocab_size,
    maximum,
    tile,
    tiles,
    mass,
    listed,
    values,
    low,
    high,
    above,
    over,
    between,
    kind,
    top,
    scale,
    least,
    k,
    p,
    joint,
    CAPACITY: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The largest of the floors of min-p, top-k and top-p, from the bracket that is known of one of them."""
    floor = least
    lowest = tl.min(tl.where(maximum > float("-inf"), maximum, top), 0)
    spread = tl.where(top > lowest, top - lowest, tl.maximum(tl.abs(top) * 1e-6, 1e-6))
    counted = mass
    step = tl.where(k > 0, 0, 1)
    while step < tl.where(p < 1, 2, 1):
        by_mass = step == 1
        if (by_mass & (kind == SEVERAL)).to(tl.int32) * (joint == 0).to(tl.int32) > 0:
            count = list_tiles(maximum, tile, tiles, floor, listed)
            counted = mass_from(base, vocab_size, listed, count, floor, top, scale, WARPS, VECTOR)
        known = (kind == BY_MASS) | (kind == BY_COUNT)
        found = search(
            base,
            vocab_size,
            maximum,
            tile,
            tiles,
            listed,
            values,
            tl.where(known, low, tl.maximum(floor, LEAST)),
            tl.where(known, high, float("inf")),
            tl.where(known, above, 0.0),
            tl.where(known, over, 0),
            tl.where(known, between, _UNKNOWN),
            tl.where(by_mass, (p * counted.to(tl.float64)).to(tl.float32), k.to(tl.float32)),
            top,
            scale,
            spread,
            by_mass,
            CAPACITY,
            WARPS,
            VECTOR,
        )
        floor = tl.maximum(floor, found)
        step += 1
    return tl.minimum(floor, top)


@triton.jit
def _weigh_kept(
    base,
    vocab_size,
    maximum,
    tile,
    tiles,
    listed,
    floor,
    top,
    scale,
    weights,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Overwrite the first column of ``weights`` with the sum of ``exp(y)`` over the kept tokens of each tile."""
    tl.store(weights + tile * COLUMNS, tl.zeros_like(maximum), mask=tile < tiles)
    count = list_tiles(maximum, tile, tiles, floor, listed)
    start = 0
    while start < count:
        x, number, inside = load_listed(base, vocab_size, listed, start, count, WARPS, VECTOR)
        total = sum_tiles(tl.where(x >= floor, weigh(x, top, scale), 0.0))
        tl.store(weights + number * COLUMNS, total, mask=inside)
        start += WARPS
    tl.debug_barrier()
