"""Launch 1, the one pass over the logits: for each tile of 1024 ids its maximum and the sum of exp(y) relative to it.

Reads every logit once. Writes 8 bytes a tile, 0.2 % of float32 logits, 0.4 % of half precision; for rows with filters
also the maxima of the tile's 16 granules, 1.6 % of whatever the logits are; for raw logprobs 4 bytes a tile more.

A warp owns a tile or several, so every reduction stays in registers and shuffles, without shared memory or barriers. For that the
block has the dimensions (lane, tile, chunk, vector), in the order in which the compiler hands out lanes, warps and
registers; a block [tiles, 1024] would spread each tile over all warps. A granule is what two neighbouring lanes hold:
64 logits, in runs of 32 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.order import times
from tokendraw_triton_gumbel.pairs import base_of, place_of

TILE = 1024
GRANULES = 16
"""Granules a tile."""
VECTORS = {"float32": 4, "bfloat16": 8, "float16": 8}
"""Neighbouring logits a lane, 16 bytes. Fixed: it says which logits a granule holds."""
LOG2_E = tl.constexpr(1.4426950408889634)
ROUNDS = tl.constexpr(6)
"""Passes that a wide row takes, at most, before one program finds its threshold."""
_TINY = tl.constexpr(1e-37)
"""Temperatures below this have an inverse that float32 hardly holds."""
_COARSEST = tl.constexpr(16777216.0)
"""Where floats are 2 apart: beyond it, no rounded offset stands in for the maximum."""


@triton.jit
def inverse_temperature(temperature, slot):
    """(1 / T as float32, finite so that 0 times it is 0; whether the row is greedy).

    Where T is so small that its inverse nears the end of float32, it is ``-2 ** -64 / T``: see :func:`~.order.times`.
    """
    if temperature is not None:
        value = tl.load(temperature + slot).to(tl.float64)
        greedy = (value > 0) == 0  # 0, below, and NaN
        tiny = value < _TINY
        value = tl.where(greedy, 1.0, tl.where(tiny, value * 18446744073709551616.0, value))
        # One step of Newton's: a division in float64 would cost more than all else in a short program.
        guess = 1.0 / value.to(tl.float32)
        wide = guess.to(tl.float64)
        better = (wide + wide * (1.0 - value * wide)).to(tl.float32)
        inverse = tl.minimum(tl.where(guess < 1e38, better, guess), 1e38)
        inverse = tl.where(tiny & (greedy == 0), -inverse, inverse)
    else:
        greedy = slot < 0
        inverse = tl.full((), 1.0, tl.float32)
    return inverse, greedy


@triton.jit
def exp2(x, PTX: tl.constexpr):
    """``2 ** x`` to 2 ulp, subnormal results as 0."""
    if PTX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def element_ids(SPAN: tl.constexpr, VECTOR: tl.constexpr):
    """Ids within ``SPAN`` neighbouring tiles: [32, SPAN, chunks, VECTOR], a tile a warp."""
    lane = tl.arange(0, 32)[:, None, None, None]
    warp = tl.arange(0, SPAN)[None, :, None, None]
    chunk = tl.arange(0, 1024 // (32 * VECTOR))[None, None, :, None]
    element = tl.arange(0, VECTOR)[None, None, None, :]
    return warp * 1024 + chunk * (32 * VECTOR) + lane * VECTOR + element


@triton.jit
def sum_tiles(block):
    """[32, SPAN, chunks, VECTOR] to [SPAN]."""
    return tl.sum(tl.sum(tl.sum(block, 3), 2), 0)


@triton.jit
def _lane_maxima(block):
    return tl.max(tl.max(block, 3), 2)


@triton.jit
def _larger_pair(a, b):
    return tl.inline_asm_elementwise(
        "max.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _halves(pairs):
    """Two bfloat16 in an int32, as float32."""
    return (pairs << 16).to(tl.float32, bitcast=True), (pairs & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _scale(temperature, row_index, row):
    """``log2(e) / T``."""
    slot = row
    if row_index is not None:
        slot = tl.load(row_index + row)
    inverse, _ = inverse_temperature(temperature, slot)
    return inverse * LOG2_E


@triton.jit
def _offset(top, scale):
    """(-top * scale as a float32; what the exact product is beside it; whether it can stand in for it)."""
    offset = -(top * scale)
    return offset, tl.fma(top, scale, offset), (tl.abs(offset) < _COARSEST) & (scale > 0)


@triton.jit
def _pair_sum(pairs, scale, offset, PTX: tl.constexpr):
    low, high = _halves(pairs)
    return exp2(tl.fma(low, scale, offset), PTX) + exp2(tl.fma(high, scale, offset), PTX)


@triton.jit
def _sum_of_pairs(a, b, c, d, top, scale, PTX: tl.constexpr):
    offset, rest, fine = _offset(top, scale)
    wide = offset[None, :, None]
    total = _pair_sum(a, scale, wide, PTX) + _pair_sum(b, scale, wide, PTX)
    total += _pair_sum(c, scale, wide, PTX)
    total += _pair_sum(d, scale, wide, PTX)
    total = tl.sum(tl.sum(total, 2), 0) * exp2(-rest, PTX)
    return total, fine & (total >= 0.5)


@triton.jit
def _sum(x, top, scale, PTX: tl.constexpr):
    """(Sum of exp2((x - top) * scale), whether it holds: not where NaN, infinities or overflow were met)."""
    if PTX:
        offset, rest, fine = _offset(top, scale)
        total = sum_tiles(exp2(tl.fma(x, scale, offset[None, :, None, None]), PTX)) * exp2(-rest, PTX)
        fine &= total >= 0.5
    else:
        total = sum_tiles(tl.exp2(times(x - top[None, :, None, None], scale)))
        fine = total >= 0.5
    return total, fine


@triton.jit
def _sum_carefully(clean, top, scale):
    """The sum relative to the maximum, whatever the tile holds; of +inf the number."""
    wide = top[None, :, None, None]
    finite = (tl.abs(wide) < float("inf")) & (clean > float("-inf"))
    weight = tl.exp2(times(tl.where(finite, clean, 0.0) - tl.where(finite, wide, 0.0), scale))
    weight = tl.where(finite, weight, tl.where(clean == float("inf"), 1.0, 0.0))
    return sum_tiles(weight)


@triton.jit(do_not_specialize=["rows", "tiles", "split", "width", "requests"])
def tile_statistics(
    logits,
    row_stride,
    vocab_size,
    temperature,
    row_index,
    maxima,
    sums,
    raw_sums,
    granules,
    queue,
    ready,
    rows,
    tiles,
    drafts,
    draft_stride,
    cu_num_logits,
    split,
    width,
    requests,
    counters,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
    PAIRED: tl.constexpr,
    PTX: tl.constexpr,
):
    """One program: ``SPAN`` neighbouring tiles of one row. Grid (groups of tiles, rows / z, z).

    :param logits: [rows, V], ``row_stride`` elements from row to row.
    :param maxima: [rows, tiles] float32; -inf where a tile has nothing above it.
    :param sums: [rows, tiles] float32: sum of ``exp((x - maximum) / T)``; of a tile with +inf, how many there are. The
        sign bit is set where the tile holds NaN, which counts as -inf.
    :param raw_sums: the same at T = 1, or None.
    :param granules: [rows, tiles, 16] of the logits' dtype, exact maxima; or None.
    :param queue: [128] int32, and ``ready`` [rows, ROUNDS], set to 0 for the launches behind; or None.
    :param drafts: rows of logits behind the first ``split``, or None; see :mod:`.pairs`.
    :param counters: [rows] int32, set to 0, or None.
    :param PAIRED: bfloat16 at even addresses, which are compared two at a time.
    :param PTX: for NVIDIA; otherwise nothing but Triton.
    """
    group = tl.program_id(0)
    index = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if queue is not None:
        if group + index == 0:
            tl.store(queue + tl.arange(0, 128), tl.zeros((128,), tl.int32))
        if (group == 0) & (index < rows):
            tl.store(ready + index * ROUNDS + tl.arange(0, 8), 0, mask=tl.arange(0, 8) < ROUNDS)
    if counters is not None:
        if (group == 0) & (index < rows):
            tl.store(counters + index, 0)
    row, beside = place_of(index, rows, cu_num_logits, split, width, requests)
    if (row >= 0) & (row < rows):
        _statistics(
            base_of(row, logits, row_stride, drafts, draft_stride, split),
            vocab_size,
            temperature,
            row_index,
            maxima,
            sums,
            raw_sums,
            granules,
            group,
            row,
            beside,
            tiles,
            SPAN,
            VECTOR,
            PAIRED,
            PTX,
        )


@triton.jit
def _statistics(
    base,
    vocab_size,
    temperature,
    row_index,
    maxima,
    sums,
    raw_sums,
    granules,
    group,
    row,
    beside,
    tiles,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
    PAIRED: tl.constexpr,
    PTX: tl.constexpr,
):
    ids = group * (SPAN * 1024) + element_ids(SPAN, VECTOR)
    whole = (group + 1) * (SPAN * 1024) <= vocab_size
    if PAIRED:
        if whole:
            place = tl.arange(0, 32)[:, None, None] * 4 + tl.arange(0, SPAN)[None, :, None] * 512
            place += group * (SPAN * 512) + tl.arange(0, 4)[None, None, :]
            pointers = base.to(tl.pointer_type(tl.int32)) + place
            a, b = tl.load(pointers), tl.load(pointers + 128)
            c, d = tl.load(pointers + 256), tl.load(pointers + 384)
            scale = _scale(temperature, row_index, beside)
            pairs = _larger_pair(_larger_pair(a, b), _larger_pair(c, d))
            first, second = tl.split(tl.reshape(pairs, (32, SPAN, 2, 2)))
            first, second = tl.split(_larger_pair(first, second))
            low, high = _halves(_larger_pair(first, second))
            granule_top = tl.max(tl.reshape(tl.maximum(low, high), (16, 2, SPAN)), 1)
            top = tl.max(granule_top, 0)
            total, fine = _sum_of_pairs(a, b, c, d, top, scale, PTX)
            if raw_sums is not None:
                raw = total
                if scale != LOG2_E:
                    raw, raw_fine = _sum_of_pairs(a, b, c, d, top, LOG2_E, PTX)
                    fine &= raw_fine
        else:
            scale = _scale(temperature, row_index, beside)
            granule_top = tl.zeros((16, SPAN), tl.float32)
            top = tl.zeros((SPAN,), tl.float32)
            total = tl.zeros((SPAN,), tl.float32)
            raw = total
            fine = total > 0
    else:
        if whole:
            x = tl.load(base + ids).to(tl.float32)
        else:
            x = tl.load(base + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        scale = _scale(temperature, row_index, beside)
        granule_top = tl.max(tl.reshape(_lane_maxima(x), (16, 2, SPAN)), 1)
        top = tl.max(granule_top, 0)
        total, fine = _sum(x, top, scale, PTX)
        if raw_sums is not None:
            raw = total
            if scale != LOG2_E:
                raw, raw_fine = _sum(x, top, LOG2_E, PTX)
                fine &= raw_fine

    # NaN, infinities and what overflows end here; the common road does not look for them.
    if tl.min(fine.to(tl.int32), 0) == 0:
        x = tl.load(base + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        clean = tl.where(x != x, float("-inf"), x)
        granule_top = tl.max(tl.reshape(_lane_maxima(clean), (16, 2, SPAN)), 1)
        top = tl.max(granule_top, 0)
        has_nan = tl.max(_lane_maxima((x != x).to(tl.int32)), 0) > 0
        total = _sum_carefully(clean, top, scale)
        total = tl.where(has_nan, -total, total)
        if raw_sums is not None:
            raw = _sum_carefully(clean, top, LOG2_E)
    tile = group * SPAN + tl.arange(0, SPAN)
    out = row.to(tl.int64) * tiles + tile
    tl.store(maxima + out, top, mask=tile < tiles)
    tl.store(sums + out, total, mask=tile < tiles)
    if raw_sums is not None:
        tl.store(raw_sums + out, raw, mask=tile < tiles)
    if granules is not None:
        place = out[None, :] * 16 + tl.arange(0, 16)[:, None]
        tl.store(granules + place, granule_top.to(granules.dtype.element_ty), mask=(tile < tiles)[None, :])
