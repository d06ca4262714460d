"""Weights and scaled logits of a row: ``exp((x - max x) / T)`` and ``(x - max x) / T``. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import key_of, value_of

LOG2_E = tl.constexpr(1.4426950408889634)
COARSEST_OFFSET = tl.constexpr(16777216.0)
"""Magnitude from which float32 values are 2 apart: a rounded offset is too inaccurate there."""
_MIN_SCALE = tl.constexpr(1e-30)
"""Least scale: below it, at huge temperatures, an offset times the scale may lose all its bits."""
_TINY_FACTOR = tl.constexpr(18446744073709551616.0)
"""2 ** 64: a negative scale represents its magnitude times this factor."""


@triton.jit
def times(distance, scale):
    """Return ``distance * scale``; a negative scale represents ``-scale * 2 ** 64``, which may exceed float32."""
    return distance * tl.where(scale < 0, _TINY_FACTOR, 1.0) * tl.abs(scale)


@triton.jit
def steady(max_logit, scale):
    """Return 1 if ``exp2(x * scale - max_logit * scale)``, one multiplication a logit, is an accurate weight."""
    return (tl.abs(max_logit * scale) < COARSEST_OFFSET).to(tl.int32) * (scale > _MIN_SCALE).to(tl.int32)


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
def weigh(x, max_logit, scale):
    """Return ``exp((x - top) / T)``, 0 for -inf; ``max_logit`` is finite, ``scale`` is ``log2(e) / T``."""
    finite = x > float("-inf")
    return tl.where(finite, tl.exp2(times(tl.where(finite, x, max_logit) - max_logit, scale)), 0.0)


@triton.jit
def share_of(x, max_logit, scale):
    """Return ``exp((x - max_logit) / T)`` for any ``max_logit``: if infinite, 1 where x equals it, and 0 elsewhere."""
    is_finite = max_logit < float("inf")
    weight = weigh(x, tl.where(is_finite & (max_logit > float("-inf")), max_logit, 0.0), scale)
    return tl.where(is_finite, weight, (x == float("inf")).to(tl.float32))


@triton.jit
def scaled(x, max_logit, inverse, FP64: tl.constexpr):
    """Return ``(x - max_logit) / T``: 0 at the maximum, even an infinite one, and -inf where x is -inf.

    :param inverse: ``1 / T`` as :func:`times` takes it.
    """
    is_below_max = (x < max_logit) & (x > float("-inf"))
    shift = tl.where(max_logit < float("inf"), max_logit, 0.0)
    if FP64:
        y = times(
            tl.where(is_below_max, x, shift).to(tl.float64) - shift.to(tl.float64), inverse.to(tl.float64)
        )
    else:
        y = times(tl.where(is_below_max, x, shift) - shift, inverse)
    extreme = tl.where(x == max_logit, 0.0, float("-inf")).to(y.dtype)
    return tl.where(max_logit < float("inf"), tl.where(is_below_max, y, extreme), extreme)


@triton.jit
def lowest_kept(max_logit, temperature, min_p, floor):
    """Return the least float32 that min-p and a floor in y keep; -inf without both.

    :param temperature: float64, like ``min_p``, which is 0 if off.
    :param floor: float32, at most 0: keep ``(x - max_logit) / temperature >= floor``; -inf if off.
    """
    lowest = tl.full((), float("-inf"), tl.float32)
    y = floor.to(tl.float64)
    if min_p > 0:
        y = tl.maximum(y, tl.log(min_p))
    if y > float("-inf"):
        # The product of 0 would be NaN at an infinite temperature.
        limit = max_logit.to(tl.float64) + tl.where(y < 0, temperature * y, 0.0)
        lowest = limit.to(tl.float32)
        # x >= exact is the same as x >= the next float32 that is not below exact
        if (lowest.to(tl.float64) < limit).to(tl.int32) * (lowest > float("-inf")).to(tl.int32) > 0:
            lowest = value_of(key_of(lowest) + 1)
    return lowest
