"""The one pass over the logits: for each tile of 1024 ids its maximum and the sum of exp(y) relative to it.

Reads every logit once. Writes 8 bytes a tile: 0.2 % of float32 logits, 0.4 % of half precision.

A warp owns a tile, so every reduction stays in registers and shuffles, without shared memory or barriers. For that the
block has the dimensions (lane, warp, chunk, vector), in the order in which the compiler hands out lanes, warps and
registers; a block [tiles, 1024] would spread each tile over all warps.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 1024
_LOG2_E = tl.constexpr(1.4426950408889634)
_LARGEST = tl.constexpr(3.4e38)


@triton.jit
def inverse_temperature(temperature, slot, HAS_TEMPERATURE: tl.constexpr):
    """(1 / T as float32, finite so that 0 times it is 0; whether the row is greedy)."""
    if HAS_TEMPERATURE:
        value = tl.load(temperature + slot).to(tl.float64)
        greedy = (value > 0) == 0  # 0, below, and NaN
        inverse = tl.where(greedy, 1.0, tl.minimum(1.0 / tl.where(greedy, 1.0, value), 3.4e38)).to(tl.float32)
    else:
        greedy = slot < 0
        inverse = tl.full((), 1.0, tl.float32)
    return inverse, greedy


@triton.jit(do_not_specialize=["vocab_size", "tiles", "groups"])
def tile_statistics(
    logits,
    row_stride,
    vocab_size,
    temperature,
    row_index,
    maxima,
    sums,
    tiles,
    groups,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    WARPS: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """One program: ``WARPS`` neighbouring tiles of one row.

    :param logits: [rows, V], ``row_stride`` elements from row to row.
    :param maxima: [rows, tiles] float32; -inf where a tile has nothing above it.
    :param sums: [rows, tiles] float32: sum of ``exp((x - maximum) / T)``; of a tile with +inf, how many there are. The
        sign bit is set where the tile holds NaN, which counts as -inf.
    """
    program = tl.program_id(0)
    row = program // groups
    group = program % groups
    lane = tl.arange(0, 32)[:, None, None, None]
    warp = tl.arange(0, WARPS)[None, :, None, None]
    chunk = tl.arange(0, 1024 // (32 * VECTOR))[None, None, :, None]
    element = tl.arange(0, VECTOR)[None, None, None, :]
    ids = (group * WARPS + warp) * 1024 + chunk * (32 * VECTOR) + lane * VECTOR + element
    base = logits + row.to(tl.int64) * row_stride
    if (group + 1) * (WARPS * 1024) <= vocab_size:
        x = tl.load(base + ids).to(tl.float32)
    else:
        x = tl.load(base + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    slot = row
    if HAS_INDEX:
        slot = tl.load(row_index + row)
    inverse, _ = inverse_temperature(temperature, slot, HAS_TEMPERATURE)
    scale = tl.minimum(inverse * _LOG2_E, _LARGEST)
    top = tl.max(tl.max(tl.max(x, 3), 2), 0)
    total = _sum(tl.exp2((x - top[None, :, None, None]) * scale))
    if tl.max((total != total).to(tl.int32), 0) > 0:
        # NaN, +inf, or a tile of -inf: rare, so the common road above does not look for them.
        is_nan = x != x
        clean = tl.where(is_nan, float("-inf"), x)
        top = tl.max(tl.max(tl.max(clean, 3), 2), 0)
        wide = top[None, :, None, None]
        finite = (tl.abs(wide) < float("inf")) & (clean > float("-inf"))
        weight = tl.exp2((tl.where(finite, clean, 0.0) - tl.where(finite, wide, 0.0)) * scale)
        weight = tl.where(finite, weight, tl.where(clean == float("inf"), 1.0, 0.0))
        total = _sum(weight)
        has_nan = tl.max(tl.max(tl.max(is_nan.to(tl.int32), 3), 2), 0) > 0
        total = tl.where(has_nan, -total, total)
    tile = group * WARPS + tl.arange(0, WARPS)
    out = row.to(tl.int64) * tiles + tile
    tl.store(maxima + out, top, mask=tile < tiles)
    tl.store(sums + out, total, mask=tile < tiles)


@triton.jit
def _sum(block):
    return tl.sum(tl.sum(tl.sum(block, 3), 2), 0)
