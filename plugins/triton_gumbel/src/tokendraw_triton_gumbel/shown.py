"""What a logprobs mode shows of logits: themselves, or ``(x - max x) / T`` less the logarithm of a mass.

Reads a temperature. The mass comes from what the first pass has left of the tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.request import NORMALISED, SCALED, TEMPERED

_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def degrees_of(temperature, slot, flags):
    """(T, 1 / T, both float64 and finite so that 0 times 1 / T is 0; whether the row is greedy): 1 in raw modes."""
    if temperature is not None:
        value = tl.load(temperature + slot).to(tl.float64)
        greedy = (value > 0) == 0  # 0, below, and NaN
        value = tl.where(greedy, 1.0, tl.minimum(value, 1.7e308))
        if (value > 1e-30).to(tl.int32) * (value < 1e30).to(tl.int32) > 0:
            # Two steps of Newton's: a division in float64 would cost more than all else in a short program.
            guess = (1.0 / value.to(tl.float32)).to(tl.float64)
            guess += guess * (1.0 - value * guess)
            inverse = guess + guess * (1.0 - value * guess)
        else:
            inverse = tl.minimum(1.0 / value, 1.7e308)
    else:
        greedy = slot < 0
        value = tl.full((), 1.0, tl.float64)
        inverse = tl.full((), 1.0, tl.float64)
    tempered = (flags & TEMPERED) != 0
    return tl.where(tempered, value, 1.0), tl.where(tempered, inverse, 1.0), greedy & tempered


@triton.jit
def least_shown(top, degrees, flags):
    """The least logit whose ``(x - max x) / T`` float32 holds: what is below is shown as -inf, by whatever it is less."""
    least = (top.to(tl.float64) - _LARGEST * degrees).to(tl.float32)
    return tl.where((flags & SCALED) != 0, least, float("-inf"))


@triton.jit
def log_mass(maximum, weight, top, inverse, flags):
    """The logarithm of the sum of ``exp((x - max x) / T)``; 0 where the mode does not normalise.

    :param maximum: [TILES] of the tiles, -inf beyond them; ``weight`` the sums relative to it, or less than 0.
    """
    distance = tl.where(maximum == top, 0.0, maximum - top)
    y = (distance.to(tl.float64) * inverse * 1.4426950408889634).to(tl.float32)
    shift = tl.log(tl.sum(tl.abs(weight) * tl.exp2(y), 0))
    return tl.where((flags & NORMALISED) != 0, shift, 0.0)


@triton.jit
def shown(x, top, inverse, shift, least, flags):
    """``(x - max x) / T - shift``, -inf below ``least``; or x itself."""
    y = tl.where(x == top, 0.0, x.to(tl.float64) - top.to(tl.float64)) * inverse - shift.to(tl.float64)
    y = tl.where(x >= least, y, float("-inf"))
    y = tl.where(top > float("-inf"), y, float("-inf")).to(tl.float32)
    return tl.where((flags & SCALED) != 0, y, x)


@triton.jit
def shown_of_drawn(base, token, top, inverse, shift, least, greedy, flags):
    """What is shown of the drawn token: 0 in greedy rows."""
    x = tl.load(base + token).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    greedily = tl.where(top > float("-inf"), 0.0, float("-inf"))
    return tl.where(greedy, greedily, shown(x, top, inverse, shift, least, flags))
