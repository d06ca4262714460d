"""The draw of a row: its floor if it has filters, a tile by its log-sum-exp plus noise, then a token in that tile.

Reads 8 bytes a tile and one tile of logits a row, of filtered rows also what :mod:`.filters` reads; writes 9 bytes a row.
One program a row. Greedy rows take the same road without noise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.few import draw_few
from tokendraw_triton_gumbel.filters import bound_of, floor_of, min_p_floor, weigh_tiles
from tokendraw_triton_gumbel.noise import gumbel
from tokendraw_triton_gumbel.tiles import inverse_temperature

TOKEN = tl.constexpr(0)
TILE = tl.constexpr(1)


@triton.jit(do_not_specialize=["vocab_size", "tiles"])
def draw_token(
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
    listed,
    values,
    ids,
    token_ids,
    valid,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    HAS_SEEDS: tl.constexpr,
    HAS_SEEDED: tl.constexpr,
    HAS_FRESH: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    HAS_JOINT: tl.constexpr,
    FILTERED: tl.constexpr,
    FP64: tl.constexpr,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    FEW: tl.constexpr,
):
    """One program: one row.

    :param maxima: [rows, tiles], as :func:`~tokendraw_triton_gumbel.tiles.tile_statistics` left them, like ``sums``.
    :param seeds: [slots] int64, and ``seeded`` [slots] bool which of them hold; ``fresh`` [rows] int64 for the others.
    :param listed: [rows, TILES] int32 of scratch, and ``values`` [rows, CAPACITY] float32, and ``ids`` [rows, FEW]
        int32; None where no row is filtered.
    :param token_ids: [rows] int64.
    :param valid: [rows] bool.
    """
    row = tl.program_id(0)
    slot = row
    if HAS_INDEX:
        slot = tl.load(row_index + row)
    inverse, greedy = inverse_temperature(temperature, slot, HAS_TEMPERATURE)
    position = tl.zeros((), tl.int64)
    if HAS_POSITIONS:
        position = tl.load(positions + row).to(tl.int64)
    seed = tl.zeros((), tl.int64)
    if HAS_FRESH:
        seed = tl.load(fresh + row)
    if HAS_SEEDS:
        own = tl.load(seeds + slot).to(tl.int64)
        if HAS_SEEDED:
            own = tl.where(tl.load(seeded + slot) != 0, own, seed)
        seed = own

    tile = tl.arange(0, TILES)
    inside = tile < tiles
    offset = row.to(tl.int64) * tiles + tile
    maximum = tl.load(maxima + offset, mask=inside, other=float("-inf"))
    marked = tl.load(sums + offset, mask=inside, other=0.0)
    has_nan = tl.min(marked.to(tl.int32, bitcast=True), 0) < 0
    top = tl.max(maximum, 0)
    distance = scaled(maximum, top, inverse, FP64)
    base = logits + row.to(tl.int64) * row_stride
    floor = float("-inf")
    token = tl.full((), -1, tl.int32)
    if FILTERED:
        k, p, least, is_joint = _filters_of(
            slot,
            vocab_size,
            top,
            temperature,
            top_k,
            top_p,
            min_p,
            joint,
            HAS_TEMPERATURE,
            HAS_TOP_K,
            HAS_TOP_P,
            HAS_MIN_P,
            HAS_JOINT,
        )
        # Scalars are joined as integers: the interpreter's comparisons of floats are not booleans.
        on = (k > 0).to(tl.int32) + (p < 1).to(tl.int32) + (least > float("-inf")).to(tl.int32)
        bounded = (top > float("-inf")).to(tl.int32) * (top < float("inf")).to(tl.int32)
        if on * bounded * (greedy == 0).to(tl.int32) > 0:
            scale = tl.minimum(inverse * 1.4426950408889634, 3.4e38)
            weight = tl.abs(marked) * tl.exp2(tl.where(maximum > float("-inf"), maximum - top, 0.0) * scale)
            mass = tl.sum(weight, 0)
            tiles_listed = listed + row.to(tl.int64) * TILES
            room = values + row.to(tl.int64) * CAPACITY
            bound = bound_of(maximum, mass, top, scale, least, k, p, is_joint)
            if (bound > float("-inf")).to(tl.int32) + (vocab_size <= FEW).to(tl.int32) > 0:
                token = draw_few(
                    base,
                    vocab_size,
                    maximum,
                    tile,
                    tiles,
                    tiles_listed,
                    room,
                    ids + row.to(tl.int64) * FEW,
                    bound,
                    top,
                    scale,
                    inverse,
                    mass,
                    k,
                    p,
                    least,
                    is_joint,
                    seed,
                    position,
                    FP64,
                    FEW,
                )
            if token < 0:
                floor = floor_of(
                    base,
                    vocab_size,
                    maximum,
                    tile,
                    tiles,
                    mass,
                    tiles_listed,
                    room,
                    top,
                    scale,
                    least,
                    k,
                    p,
                    is_joint,
                    CAPACITY=CAPACITY,
                )
                weigh_tiles(
                    base,
                    vocab_size,
                    maximum,
                    tile,
                    tiles,
                    tiles_listed,
                    floor,
                    top,
                    scale,
                    sums + row.to(tl.int64) * tiles,
                )
                marked = tl.load(sums + offset, mask=inside, other=0.0)
                distance = tl.zeros_like(distance)
    if token < 0:
        noise = gumbel(seed, position, tile, TILE, FP64)
        score = tl.log(tl.abs(marked).to(distance.dtype)) + distance + noise
        score = tl.where(greedy, tl.where(maximum == top, 0.0, float("-inf")).to(score.dtype), score)
        chosen = tl.argmax(tl.where(inside, score, float("-inf")), 0)
        members = chosen * 1024 + tl.arange(0, 1024)
        x = tl.load(base + members, mask=members < vocab_size, other=float("-inf")).to(tl.float32)
        x = tl.where((x != x) | (x < floor), float("-inf"), x)
        score = scaled(x, top, inverse, FP64) + gumbel(seed, position, members, TOKEN, FP64)
        score = tl.where(greedy, tl.where(x == top, 0.0, float("-inf")).to(score.dtype), score)
        token = chosen * 1024 + tl.argmax(score, 0)
    some = top > float("-inf")
    tl.store(token_ids + row, tl.where(some, token, 0).to(tl.int64))
    tl.store(valid + row, some.to(tl.int32) * (has_nan == 0).to(tl.int32) > 0)


@triton.jit
def _filters_of(
    slot,
    vocab_size,
    top,
    temperature,
    top_k,
    top_p,
    min_p,
    joint,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    HAS_JOINT: tl.constexpr,
):
    """(k in [1, V) or 0, p or 1, the floor of min-p or -inf, whether the order is joint): off where out of range."""
    k = tl.zeros((), tl.int64)
    p = tl.full((), 1.0, tl.float64)
    least = tl.full((), float("-inf"), tl.float32)
    is_joint = slot < 0
    if HAS_TOP_K:
        k = tl.load(top_k + slot).to(tl.int64)
        k = tl.where((k > 0) & (k < vocab_size), k, 0)
    if HAS_TOP_P:
        p = tl.load(top_p + slot).to(tl.float64)
        p = tl.where(p < 1, p, 1.0)  # NaN is off
    if HAS_MIN_P:
        degrees = tl.full((), 1.0, tl.float64)
        if HAS_TEMPERATURE:
            degrees = tl.load(temperature + slot).to(tl.float64)
        least = min_p_floor(top, degrees, tl.load(min_p + slot).to(tl.float64))
    if HAS_JOINT:
        is_joint = tl.load(joint + slot) != 0
    return k, p, least, is_joint


@triton.jit
def scaled(x, top, inverse, FP64: tl.constexpr):
    """``(x - max x) / T``: 0 at the maximum, an infinite one too, and -inf where x is."""
    wanted = (x < top) & (x > float("-inf"))
    shift = tl.where(top < float("inf"), top, 0.0)
    if FP64:
        y = (tl.where(wanted, x, shift).to(tl.float64) - shift.to(tl.float64)) * inverse.to(tl.float64)
    else:
        y = (tl.where(wanted, x, shift) - shift) * inverse
    extreme = tl.where(x == top, 0.0, float("-inf")).to(y.dtype)
    return tl.where(top < float("inf"), tl.where(wanted, y, extreme), extreme)
