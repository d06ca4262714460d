"""Computes maxima and sums of tiles in registers: logits one by one, or bfloat16 in pairs. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import halves
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULE_LANES, GRANULES_PER_HALF, tile_sums
from tokendraw_triton_gumbel.kernels.shared.weights import COARSEST_OFFSET, exp2, times

_MIN_SUM = tl.constexpr(0.5)
"""A tile's sum includes the weight 1 of its maximum, so a lower sum comes from NaN or an overflow."""


@triton.jit
def lane_maxima(block):
    """Reduce [LANES, SPAN, chunks, VECTOR] to [LANES, SPAN]."""
    return tl.max(tl.max(block, 3), 2)


@triton.jit
def granule_maxima(block):
    """Reduce [LANES, SPAN, chunks, VECTOR] to maxima of granules: [granules of half a tile, SPAN, halves]."""
    halves_of_tile = tl.reshape(
        block, (block.shape[0], block.shape[1], 2, block.shape[2] // 2, block.shape[3])
    )
    lanes = tl.max(tl.max(halves_of_tile, 4), 3)
    return tl.max(tl.reshape(lanes, (GRANULES_PER_HALF, GRANULE_LANES, block.shape[1], 2)), 1)


@triton.jit
def half_granule_maxima(lanes, SPAN: tl.constexpr):
    """Reduce the maxima of lanes over half a tile, [LANES, SPAN], to those of its granules, [8, SPAN]."""
    return tl.max(tl.reshape(lanes, (GRANULES_PER_HALF, GRANULE_LANES, SPAN)), 1)


@triton.jit
def larger_pairs(a, b):
    """Return the larger of each two bfloat16 in int32. NVIDIA."""
    return tl.inline_asm_elementwise(
        "max.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _offset_of(max_logit, scale):
    """Return (-max_logit * scale in float32; its rounding error; whether the rounded product is accurate enough)."""
    offset = -(max_logit * scale)
    return offset, tl.fma(max_logit, scale, offset), (tl.abs(offset) < COARSEST_OFFSET) & (scale > 0)


@triton.jit
def _sum_pair(pairs, scale, offset, IS_NVIDIA: tl.constexpr):
    low, high = halves(pairs)
    return exp2(tl.fma(low, scale, offset), IS_NVIDIA) + exp2(tl.fma(high, scale, offset), IS_NVIDIA)


@triton.jit
def sum_pairs(a, b, c, d, max_logit, scale, IS_NVIDIA: tl.constexpr):
    """Sum the weights of four blocks of pairs; returns the same results as :func:`sum_logits`."""
    offset, rounding, is_exact = _offset_of(max_logit, scale)
    wide = offset[None, :, None]
    total = _sum_pair(a, scale, wide, IS_NVIDIA) + _sum_pair(b, scale, wide, IS_NVIDIA)
    total += _sum_pair(c, scale, wide, IS_NVIDIA)
    total += _sum_pair(d, scale, wide, IS_NVIDIA)
    total = tl.sum(tl.sum(total, 2), 0) * exp2(-rounding, IS_NVIDIA)
    return total, is_exact & (total >= _MIN_SUM)


@triton.jit
def sum_logits(x, max_logit, scale, IS_NVIDIA: tl.constexpr):
    """Return (sum of exp2((x - max_logit) * scale), whether it is exact: no NaN, infinity or overflow occurred)."""
    if IS_NVIDIA:
        offset, rounding, is_exact = _offset_of(max_logit, scale)
        weight = exp2(tl.fma(x, scale, offset[None, :, None, None]), IS_NVIDIA)
        total = tile_sums(weight) * exp2(-rounding, IS_NVIDIA)
        is_exact &= total >= _MIN_SUM
    else:
        total = tile_sums(tl.exp2(times(x - max_logit[None, :, None, None], scale)))
        is_exact = total >= _MIN_SUM
    return total, is_exact


@triton.jit
def sum_carefully(clean, max_logit, scale):
    """Return the sum relative to the maximum, whatever the tile holds; of +inf the number."""
    wide = max_logit[None, :, None, None]
    finite = (tl.abs(wide) < float("inf")) & (clean > float("-inf"))
    weight = tl.exp2(times(tl.where(finite, clean, 0.0) - tl.where(finite, wide, 0.0), scale))
    weight = tl.where(finite, weight, tl.where(clean == float("inf"), 1.0, 0.0))
    return tile_sums(weight)
