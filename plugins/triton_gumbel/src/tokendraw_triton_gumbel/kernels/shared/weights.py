"""Weights and scaled logits of a row: ``exp((x - max x) / T)`` and ``(x - max x) / T``. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of

LOG2_E = tl.constexpr(1.4426950408889634)
COARSEST_OFFSET = tl.constexpr(16777216.0)
"""Magnitude from which float32 values are 2 apart: there no rounded offset stands in for the largest logit."""
_LEAST_SCALE = tl.constexpr(1e-30)
"""Least scale: below it, at huge temperatures, an offset times the scale may lose all its bits."""
_TINY_FACTOR = tl.constexpr(18446744073709551616.0)
"""2 ** 64: a negative scale stands for one so many times as large."""


@triton.jit
def times(distance, scale):
    """Return ``distance * scale``; a negative scale stands for ``-scale * 2 ** 64``, which float32 may not hold."""
    return distance * tl.where(scale < 0, _TINY_FACTOR, 1.0) * tl.abs(scale)


@triton.jit
def steady(top, scale):
    """Return 1 if ``exp2(x * scale - top * scale)``, in one multiplication a logit, does for ``exp((x - top) / T)``."""
    return (tl.abs(top * scale) < COARSEST_OFFSET).to(tl.int32) * (scale > _LEAST_SCALE).to(tl.int32)


@triton.jit
def exp2(x, IS_NVIDIA: tl.constexpr):
    """Return ``2 ** x`` to 2 ulp, subnormal results as 0."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def weigh(x, top, scale):
    """Return ``exp((x - top) / T)``, 0 for -inf; ``top`` is finite, ``scale`` is ``log2(e) / T``."""
    finite = x > float("-inf")
    return tl.where(finite, tl.exp2(times(tl.where(finite, x, top) - top, scale)), 0.0)


@triton.jit
def share_of(x, top, scale):
    """Return ``exp((x - top) / T)`` whatever ``top`` is: of an infinite one, 1 where x is it, too; 0 for -inf."""
    is_finite = top < float("inf")
    weight = weigh(x, tl.where(is_finite & (top > float("-inf")), top, 0.0), scale)
    return tl.where(is_finite, weight, (x == float("inf")).to(tl.float32))


@triton.jit
def scaled(x, top, inverse, FP64: tl.constexpr):
    """Return ``(x - top) / T``: 0 at the maximum, an infinite one too, and -inf where x is.

    :param inverse: ``1 / T`` as :func:`times` takes it.
    """
    wanted = (x < top) & (x > float("-inf"))
    shift = tl.where(top < float("inf"), top, 0.0)
    if FP64:
        y = times(tl.where(wanted, x, shift).to(tl.float64) - shift.to(tl.float64), inverse.to(tl.float64))
    else:
        y = times(tl.where(wanted, x, shift) - shift, inverse)
    extreme = tl.where(x == top, 0.0, float("-inf")).to(y.dtype)
    return tl.where(top < float("inf"), tl.where(wanted, y, extreme), extreme)


@triton.jit
def min_p_floor(top, temperature, min_p):
    """Return the least float32 that min-p keeps; -inf if it is off.

    :param temperature: float64, like ``min_p``, which is 0 if it is off.
    """
    floor = tl.full((), float("-inf"), tl.float32)
    if min_p > 0:
        exact = top.to(tl.float64) + temperature * tl.log(tl.minimum(min_p, 1.0))
        floor = exact.to(tl.float32)
        # x >= exact is the same as x >= the next float32 that is not below exact
        if (floor.to(tl.float64) < exact).to(tl.int32) * (floor > float("-inf")).to(tl.int32) > 0:
            floor = value_of(key_of(floor) + 1)
    return floor
