"""Computes maxima and sums of tiles in registers: logits one by one, or bfloat16 in pairs. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import halves
from tokendraw_triton_gumbel.kernels.shared.tile_layout import (
    GRANULE_LANES,
    GRANULES_PER_HALF,
    TILE_SIZE,
    tile_sums,
)
from tokendraw_triton_gumbel.kernels.shared.weights import COARSEST_OFFSET, exp2, times

_MIN_SUM = tl.constexpr(0.5)
"""A tile's sum includes the weight 1 of its maximum, so a lower sum comes from NaN or an overflow."""
_LEAST_EXPONENT = tl.constexpr(-1000.0)
"""Weights are 0 far above it, also that of -inf, whose product with its weight would be NaN."""
SMALL_UNIT = tl.constexpr(2.117582368135751e-22)
"""2 ** -72: the squares of 1024 float32 distances in this unit cannot overflow."""
LARGE_UNIT = tl.constexpr(7.922816251426434e28)
"""2 ** 96: no square of a float32 distance in this unit vanishes, and none overflows where squares add up to less than
:data:`_LEAST_SQUARE`."""
_LEAST_SQUARE = tl.constexpr(8.271806125530277e-25)
"""2 ** -80."""
_LEAST_SCALE = tl.constexpr(1e-12)
"""Squares of exponents might vanish below."""


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
def _entropies(weight, exponent):
    """Return ``w log2 w`` of weights ``w = 2 ** exponent``: 0 where w is 0."""
    return weight * tl.maximum(exponent, _LEAST_EXPONENT)


@triton.jit
def _distance_sums(exponents, squares, rounding, scale):
    """Return the sums of ``x - max_logit`` and of the squares, from those of the exponents of all weights of a tile."""
    exact = exponents - rounding * TILE_SIZE
    inverse = 1.0 / scale
    return exact * inverse, (squares - rounding * (exponents + exact)) * inverse * inverse


@triton.jit
def _sum_pair(
    pairs,
    scale,
    offset,
    HAS_ENTROPY: tl.constexpr,
    HAS_COLLISION: tl.constexpr,
    HAS_DISTANCES: tl.constexpr,
    IS_NVIDIA: tl.constexpr,
):
    low, high = halves(pairs)
    low, high = tl.fma(low, scale, offset), tl.fma(high, scale, offset)
    low_weight, high_weight = exp2(low, IS_NVIDIA), exp2(high, IS_NVIDIA)
    weight = low_weight + high_weight
    entropy = _entropies(low_weight, low) + _entropies(high_weight, high) if HAS_ENTROPY else weight
    collision = low_weight * low_weight + high_weight * high_weight if HAS_COLLISION else weight
    square = low * low + high * high if HAS_DISTANCES else weight
    return weight, entropy, collision, low + high if HAS_DISTANCES else weight, square


@triton.jit
def sum_pairs(
    a,
    b,
    c,
    d,
    max_logit,
    scale,
    HAS_ENTROPY: tl.constexpr,
    HAS_COLLISION: tl.constexpr,
    HAS_DISTANCES: tl.constexpr,
    IS_NVIDIA: tl.constexpr,
):
    """Sum the weights of four blocks of pairs; returns the same results as :func:`sum_logits`."""
    offset, rounding, is_exact = _offset_of(max_logit, scale)
    wide = offset[None, :, None]
    a_weight, a_entropy, a_collision, a_sum, a_square = _sum_pair(
        a, scale, wide, HAS_ENTROPY, HAS_COLLISION, HAS_DISTANCES, IS_NVIDIA
    )
    b_weight, b_entropy, b_collision, b_sum, b_square = _sum_pair(
        b, scale, wide, HAS_ENTROPY, HAS_COLLISION, HAS_DISTANCES, IS_NVIDIA
    )
    c_weight, c_entropy, c_collision, c_sum, c_square = _sum_pair(
        c, scale, wide, HAS_ENTROPY, HAS_COLLISION, HAS_DISTANCES, IS_NVIDIA
    )
    d_weight, d_entropy, d_collision, d_sum, d_square = _sum_pair(
        d, scale, wide, HAS_ENTROPY, HAS_COLLISION, HAS_DISTANCES, IS_NVIDIA
    )
    total = a_weight + b_weight
    total += c_weight
    total += d_weight
    total = _sum_lanes(total)
    entropy = total
    collision = total
    distance = total
    square = total
    factor = exp2(-rounding, IS_NVIDIA)
    if HAS_ENTROPY:
        entropy = _sum_lanes((a_entropy + b_entropy) + (c_entropy + d_entropy))
        entropy = (entropy - rounding * total) * factor
    if HAS_COLLISION:
        collision = _sum_lanes((a_collision + b_collision) + (c_collision + d_collision)) * (factor * factor)
    if HAS_DISTANCES:
        distance = _sum_lanes((a_sum + b_sum) + (c_sum + d_sum))
        square = _sum_lanes((a_square + b_square) + (c_square + d_square))
        distance, square = _distance_sums(distance, square, rounding, scale)
        is_exact &= tl.where(scale > _LEAST_SCALE, square, float("inf")) < float("inf")
        is_exact &= (square > _LEAST_SQUARE) | (distance == 0)
    total *= factor
    return total, entropy, collision, distance, square, is_exact & (total >= _MIN_SUM)


@triton.jit
def _sum_lanes(block):
    """Sum blocks of pairs [LANES, SPAN, pairs of a vector] by tile."""
    return tl.sum(tl.sum(block, 2), 0)


@triton.jit
def sum_logits(
    x,
    max_logit,
    scale,
    HAS_ENTROPY: tl.constexpr,
    HAS_COLLISION: tl.constexpr,
    HAS_DISTANCES: tl.constexpr,
    IS_NVIDIA: tl.constexpr,
):
    """Sum weights ``w = exp2((x - max_logit) * scale)`` by tile.

    Returns (the sums; those of ``w log2 w`` if HAS_ENTROPY; those of ``w * w`` if HAS_COLLISION; those of
    ``x - max_logit`` and of the squares if HAS_DISTANCES; whether all are exact: no NaN, infinity or overflow
    occurred).
    """
    if IS_NVIDIA:
        offset, rounding, is_exact = _offset_of(max_logit, scale)
        exponent = tl.fma(x, scale, offset[None, :, None, None])
        weight = exp2(exponent, IS_NVIDIA)
        factor = exp2(-rounding, IS_NVIDIA)
        total = tile_sums(weight)
        entropy = total
        if HAS_ENTROPY:
            entropy = (tile_sums(_entropies(weight, exponent)) - rounding * total) * factor
        collision = tile_sums(weight * weight) * (factor * factor) if HAS_COLLISION else total
        total *= factor
        is_exact &= total >= _MIN_SUM
    else:
        exponent = times(x - max_logit[None, :, None, None], scale)
        weight = tl.exp2(exponent)
        total = tile_sums(weight)
        entropy = tile_sums(_entropies(weight, exponent)) if HAS_ENTROPY else total
        rounding = tl.zeros_like(total)
        collision = tile_sums(weight * weight) if HAS_COLLISION else total
        is_exact = total >= _MIN_SUM
    distance = total
    square = total
    if HAS_DISTANCES:
        distance, square = tile_sums(exponent), tile_sums(exponent * exponent)
        distance, square = _distance_sums(distance, square, rounding, scale)
        is_exact &= tl.where(scale > _LEAST_SCALE, square, float("inf")) < float("inf")
        is_exact &= (square > _LEAST_SQUARE) | (distance == 0)
    return total, entropy, collision, distance, square, is_exact


@triton.jit
def sum_carefully(clean, max_logit, scale, HAS_ENTROPY: tl.constexpr, HAS_COLLISION: tl.constexpr):
    """Return the sums of :func:`sum_logits`, whatever the tile holds; +inf weighs 1."""
    wide = max_logit[None, :, None, None]
    finite = (tl.abs(wide) < float("inf")) & (clean > float("-inf"))
    exponent = times(tl.where(finite, clean, 0.0) - tl.where(finite, wide, 0.0), scale)
    weight = tl.exp2(exponent)
    entropy = tile_sums(tl.where(finite, _entropies(weight, exponent), 0.0)) if HAS_ENTROPY else max_logit
    weight = tl.where(finite, weight, tl.where(clean == float("inf"), 1.0, 0.0))
    return tile_sums(weight), entropy, tile_sums(weight * weight) if HAS_COLLISION else max_logit


@triton.jit
def sum_distances_carefully(clean, max_logit):
    """Return (numbers of finite logits, sums of ``x - max_logit``, sums of the squares), whatever the tile holds.

    Where squares overflow, sums are in units of ``SMALL_UNIT``, and that of squares is negative. Where they might
    vanish, sums are in units of ``LARGE_UNIT``, and that of distances is positive.
    """
    top = tl.where(tl.abs(max_logit) < float("inf"), max_logit, 0.0)[None, :, None, None]
    is_finite = tl.abs(clean) < float("inf")
    finite = tl.where(is_finite, clean, top)
    distance = finite - top
    small = finite * SMALL_UNIT - top * SMALL_UNIT
    square = tile_sums(distance * distance)
    overflows = (square < float("inf")) == 0
    vanishes = square < _LEAST_SQUARE
    large = tl.where(vanishes[None, :, None, None], distance, 0.0) * LARGE_UNIT
    total = tl.where(vanishes, -tile_sums(large), tile_sums(distance))
    square = tl.where(vanishes, tile_sums(large * large), square)
    return (
        tile_sums(is_finite.to(tl.float32)),
        tl.where(overflows, tile_sums(small), total),
        tl.where(overflows, -tile_sums(small * small), square),
    )
