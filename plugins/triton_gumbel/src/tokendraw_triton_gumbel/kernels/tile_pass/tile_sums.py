"""The maxima and the sums of tiles in registers: logits one by one, or bfloat16 in pairs. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import halves
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE, LANES, tile_sums
from tokendraw_triton_gumbel.kernels.shared.weights import COARSEST_OFFSET, exp2, times

_LEAST_SUM = tl.constexpr(0.5)
"""A tile's sum holds the weight of its own maximum, 1, so that one below this met NaN or an overflow."""


@triton.jit
def lane_maxima(block):
    """Reduce [LANES, SPAN, chunks, VECTOR] to [LANES, SPAN]."""
    return tl.max(tl.max(block, 3), 2)


@triton.jit
def granule_maxima(lanes, SPAN: tl.constexpr):
    """Reduce the maxima of lanes [LANES, SPAN] to those of granules [16, SPAN]: two neighbouring lanes each."""
    return tl.max(tl.reshape(lanes, (GRANULES_PER_TILE, LANES // GRANULES_PER_TILE, SPAN)), 1)


@triton.jit
def larger_pairs(a, b):
    """Return the larger of each two bfloat16 in int32. NVIDIA."""
    return tl.inline_asm_elementwise(
        "max.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _offset_of(top, scale):
    """Return (-top * scale as float32; what the exact product is beside it; whether it can stand in for it)."""
    offset = -(top * scale)
    return offset, tl.fma(top, scale, offset), (tl.abs(offset) < COARSEST_OFFSET) & (scale > 0)


@triton.jit
def _sum_pair(pairs, scale, offset, IS_NVIDIA: tl.constexpr):
    low, high = halves(pairs)
    return exp2(tl.fma(low, scale, offset), IS_NVIDIA) + exp2(tl.fma(high, scale, offset), IS_NVIDIA)


@triton.jit
def sum_pairs(a, b, c, d, top, scale, IS_NVIDIA: tl.constexpr):
    """Sum the weights of four blocks of pairs; the results are those of :func:`sum_logits`."""
    offset, rest, fine = _offset_of(top, scale)
    wide = offset[None, :, None]
    total = _sum_pair(a, scale, wide, IS_NVIDIA) + _sum_pair(b, scale, wide, IS_NVIDIA)
    total += _sum_pair(c, scale, wide, IS_NVIDIA)
    total += _sum_pair(d, scale, wide, IS_NVIDIA)
    total = tl.sum(tl.sum(total, 2), 0) * exp2(-rest, IS_NVIDIA)
    return total, fine & (total >= _LEAST_SUM)


@triton.jit
def sum_logits(x, top, scale, IS_NVIDIA: tl.constexpr):
    """Return (sum of exp2((x - top) * scale), whether it holds: not where NaN, infinities or overflow were met)."""
    if IS_NVIDIA:
        offset, rest, fine = _offset_of(top, scale)
        weight = exp2(tl.fma(x, scale, offset[None, :, None, None]), IS_NVIDIA)
        total = tile_sums(weight) * exp2(-rest, IS_NVIDIA)
        fine &= total >= _LEAST_SUM
    else:
        total = tile_sums(tl.exp2(times(x - top[None, :, None, None], scale)))
        fine = total >= _LEAST_SUM
    return total, fine


@triton.jit
def sum_carefully(clean, top, scale):
    """Return the sum relative to the maximum, whatever the tile holds; of +inf the number."""
    wide = top[None, :, None, None]
    finite = (tl.abs(wide) < float("inf")) & (clean > float("-inf"))
    weight = tl.exp2(times(tl.where(finite, clean, 0.0) - tl.where(finite, wide, 0.0), scale))
    weight = tl.where(finite, weight, tl.where(clean == float("inf"), 1.0, 0.0))
    return tile_sums(weight)
