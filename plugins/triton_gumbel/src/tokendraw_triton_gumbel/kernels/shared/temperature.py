"""Computes the inverse of a temperature, in float32 and in float64: one rule for greedy rows, one Newton step."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED

_TINY = tl.constexpr(1e-37)
"""Below this temperature the inverse nears the end of float32."""
_TINY_FACTOR = tl.constexpr(18446744073709551616.0)
"""2 ** 64."""
_LARGEST_INVERSE = tl.constexpr(1e38)
_SMALLEST_INVERSE = tl.constexpr(1e-45)
_LARGEST_FP64 = tl.constexpr(1.7e308)
_NEWTON_MIN = tl.constexpr(1e-30)
_NEWTON_MAX = tl.constexpr(1e30)
"""Between these limits Newton's step may start from a float32 inverse."""


@triton.jit
def load_temperature(temperature, slot):
    """Return (T in float64, whether the row is greedy: T is 0, below, or NaN)."""
    value = tl.load(temperature + slot).to(tl.float64)
    return value, (value > 0) == 0


@triton.jit
def _newton(value, guess):
    """Return a better guess of ``1 / value``: a float64 division would cost more than all else in a short program."""
    return guess + guess * (1.0 - value * guess)


@triton.jit
def inverse_temperature(temperature, slot):
    """Return (1 / T as float32, positive and finite; whether the row is greedy).

    If the inverse of a tiny T nears the end of float32, the result is ``-2 ** -64 / T``: see :func:`~.weights.times`.
    """
    if temperature is not None:
        value, greedy = load_temperature(temperature, slot)
        tiny = value < _TINY
        value = tl.where(greedy, 1.0, tl.where(tiny, value * _TINY_FACTOR, value))
        guess = 1.0 / value.to(tl.float32)
        refined = _newton(value, guess.to(tl.float64)).to(tl.float32)
        # Newton's step is NaN from 0, the inverse of an infinite T; so is 0 times an infinite difference of logits.
        smallest = tl.full((), _SMALLEST_INVERSE, tl.float32)
        refined = tl.where(refined > smallest, refined, smallest)
        inverse = tl.where(guess < _LARGEST_INVERSE, refined, _LARGEST_INVERSE)
        inverse = tl.where(tiny & (greedy == 0), -inverse, inverse)
    else:
        greedy = slot < 0
        inverse = tl.full((), 1.0, tl.float32)
    return inverse, greedy


@triton.jit
def mode_temperature(temperature, slot, flags):
    """Return (T, 1 / T, whether the row is greedy) for a logprobs mode: 1 and not greedy in raw modes.

    Both are float64, and finite so that 0 times 1 / T is 0.
    """
    if temperature is not None:
        value, greedy = load_temperature(temperature, slot)
        value = tl.where(greedy, 1.0, tl.minimum(value, _LARGEST_FP64))
        if (value > _NEWTON_MIN).to(tl.int32) * (value < _NEWTON_MAX).to(tl.int32) > 0:
            guess = (1.0 / value.to(tl.float32)).to(tl.float64)
            inverse = _newton(value, _newton(value, guess))
        else:
            inverse = tl.minimum(1.0 / value, _LARGEST_FP64)
    else:
        greedy = slot < 0
        value = tl.full((), 1.0, tl.float64)
        inverse = tl.full((), 1.0, tl.float64)
    tempered = (flags & TEMPERED) != 0
    return tl.where(tempered, value, 1.0), tl.where(tempered, inverse, 1.0), greedy & tempered
