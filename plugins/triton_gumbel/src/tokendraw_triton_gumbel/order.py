"""Floats in the order of integers, and weights: what every search over values needs. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

LEAST = tl.constexpr(-3.4028234663852886e38)
LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def key_of(x):
    """Float32 as int32 in the same order; both zeros as 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """The inverse of :func:`key_of`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def times(distance, scale):
    """``distance * scale``; a negative scale stands for ``-scale * 2 ** 64``, which may be more than float32 holds."""
    return distance * tl.where(scale < 0, 18446744073709551616.0, 1.0) * tl.abs(scale)


@triton.jit
def weigh(x, top, scale):
    """``exp((x - max x) / T)``, 0 for -inf. ``top`` is finite, ``scale`` is ``log2(e) / T`` as :func:`times` takes it."""
    finite = x > float("-inf")
    return tl.where(finite, tl.exp2(times(tl.where(finite, x, top) - top, scale)), 0.0)


@triton.jit
def min_p_floor(top, degrees, min_p):
    """The least float32 that min-p keeps; -inf if it is off.

    :param degrees: the temperature, and ``min_p``, 0 if it is off: both float64.
    """
    floor = tl.full((), float("-inf"), tl.float32)
    if min_p > 0:
        exact = top.to(tl.float64) + degrees * tl.log(tl.minimum(min_p, 1.0))
        floor = exact.to(tl.float32)
        # x >= exact is the same as x >= the next float32 that is not below exact
        if (floor.to(tl.float64) < exact).to(tl.int32) * (floor > float("-inf")).to(tl.int32) > 0:
            floor = value_of(key_of(floor) + 1)
    return floor


@triton.jit
def scaled(x, top, inverse, FP64: tl.constexpr):
    """``(x - max x) / T``: 0 at the maximum, an infinite one too, and -inf where x is.

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
