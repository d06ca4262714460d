"""Guesses again where the threshold lies, once passes have left a bracket: pivots inside it for the next one."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.first_guess import LEAST_DEPTH, WEIGHTLESS
from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, key_of, value_of

_NEAR_SHARE = tl.constexpr(0.03)
_FAR_SHARE = tl.constexpr(0.15)
"""Shares of the bracket from where a straight line meets the target to the pivots."""
_WIDE = tl.constexpr(0.3)
"""From that share of the target on in a bracket, no straight line leads through it."""
_NEAREST = tl.constexpr(0.75)
_NEARER = tl.constexpr(0.25)
"""There pivots lie so much nearer to the high end, where most of the mass is."""
_RELATIVE = tl.constexpr(1e-6)
"""The least distance of pivots towards an open end, relative to the largest logit."""


@triton.jit
def _roundest_between(low, high, ULP_STEP: tl.constexpr):
    """Return the value above ``low`` and below ``high`` that has the fewest bits.

    Logits that were computed in half precision are round: where a bracket holds a single value of theirs, it is this.
    """
    first, last = key_of(low) + ULP_STEP, key_of(high) - ULP_STEP
    mirrored = last < 0
    lower, upper = tl.where(mirrored, ~last, first), tl.where(mirrored, ~first, last)
    differ = tl.where(lower > 0, (lower - 1) ^ upper, upper)
    for shift in tl.static_range(5):
        differ |= differ >> (1 << shift)
    roundest = tl.where(lower < 0, 0, upper & ~(differ >> 1))
    return value_of(tl.where(mirrored, ~roundest, roundest))


@triton.jit
def _least_and_largest(least_a, largest_a, least_b, largest_b):
    return tl.minimum(least_a, least_b), tl.maximum(largest_a, largest_b)


@triton.jit
def only_value(x, low, high):
    """Return the value of all logits seen that lie in [low, high), if it is a single one; else infinity.

    :param x: [2048], some of the row's logits.
    """
    inside = (x >= low) & (x < high)
    first, last = tl.reduce(
        (tl.where(inside, x, float("inf")), tl.where(inside, x, float("-inf"))), 0, _least_and_largest
    )
    return tl.where(first == last, first, float("inf"))


@triton.jit
def next_pivots(bracket, at_low, at_high, target, scale, width, tied, is_second, ULP_STEP: tl.constexpr):
    """Return four pivots inside a bracket, or towards its open end.

    Two lie around where a straight line meets the target. The others lie around a value that thousands of logits may
    share, since no other pivots would ever tell; or, in the second pass, further away.

    :param bracket: :class:`~.bracket.Bracket`.
    :param at_low: what the row weighs, or how many logits it holds, from the low end upwards; ``at_high`` likewise.
    :param scale: the :class:`~.row_values.RowScale` of the row.
    :param width: the distance from the first to the last pivot of the pass before.
    :param tied: the only value that was seen in the bracket; infinity if there is none.
    """
    low, high, top = bracket.low, bracket.high, scale.top
    reach = tl.maximum(width, tl.abs(top) * _RELATIVE)
    is_tied = tied < float("inf")
    bracketed = (bracket.low_column >= 0) & (bracket.high_column >= 0)
    shared = tl.where(is_tied, tied, _roundest_between(low, high, ULP_STEP))
    if bracketed:
        steep = tl.where(scale.scale < 0, LARGEST, scale.scale)
        base = tl.maximum(low, tl.minimum(top - 1.0 / steep * WEIGHTLESS, high))
        gap = high - base
        inside = at_low - at_high
        inner = gap * tl.minimum(tl.maximum((at_low - target) / tl.maximum(inside, LEAST_DEPTH), 0.0), 1.0)
        is_wide = inside > target * _WIDE
        above = base + tl.where(is_wide, inner + (gap - inner) * _NEAREST, inner + _NEAR_SHARE * gap)
        below = base + tl.where(is_wide, inner + (gap - inner) * _NEARER, inner - _NEAR_SHARE * gap)
        far = is_second & (is_tied == 0) & (is_wide == 0)
        upper = tl.where(far, base + inner + _FAR_SHARE * gap, value_of(key_of(shared) + ULP_STEP))
        lower = tl.where(far, base + inner - _FAR_SHARE * gap, shared)
    else:
        is_above = bracket.high_column < 0
        above = tl.where(is_above, low + 4.0 * reach, high - reach)
        below = tl.where(is_above, low + reach, high - 16.0 * reach)
        upper = tl.where(is_above, top, high - 4.0 * reach)
        lower = tl.minimum(tl.where(is_above, low + 16.0 * reach, low), upper)
        upper = tl.where(is_tied, value_of(key_of(shared) + ULP_STEP), upper)
        lower = tl.where(is_tied, shared, lower)
    p0, p3 = tl.maximum(above, upper), tl.minimum(below, lower)
    a, b = tl.minimum(above, upper), tl.maximum(below, lower)
    return PerPivot(p0, tl.maximum(a, b), tl.minimum(a, b), p3)
