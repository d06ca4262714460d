"""Guesses the threshold again, once passes have left a bracket: four pivots inside the bracket for the next pass."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.first_pivots import MIN_DEPTH, WEIGHTLESS_LOG2
from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, key_of, value_of

_NEAR_SHARE = tl.constexpr(0.03)
_FAR_SHARE = tl.constexpr(0.15)
"""Distances of the pivots from the interpolated point, as shares of the bracket."""
_MAX_LINEAR_SHARE = tl.constexpr(0.3)
"""Above this share of the target mass inside the bracket, linear interpolation is too inaccurate."""
_UPPER_PIVOT_SHARE = tl.constexpr(0.75)
_LOWER_PIVOT_SHARE = tl.constexpr(0.25)
"""Shares of the rest of the bracket from the interpolated point to the pivots, if interpolation is inaccurate."""
_MIN_RELATIVE_STEP = tl.constexpr(1e-6)
"""The least distance of pivots towards an open end, relative to the largest logit."""


@triton.jit
def _roundest_between(low, high, ULP_STEP: tl.constexpr):
    """Return the value between ``low`` and ``high`` with the fewest bits.

    Logits computed in half precision are round: if a bracket holds a single one of their values, it is this value.
    """
    low_key, high_key = key_of(low) + ULP_STEP, key_of(high) - ULP_STEP
    is_mirrored = high_key < 0
    lower, upper = tl.where(is_mirrored, ~high_key, low_key), tl.where(is_mirrored, ~low_key, high_key)
    differ = tl.where(lower > 0, (lower - 1) ^ upper, upper)
    for shift in tl.static_range(5):
        differ |= differ >> (1 << shift)
    roundest = tl.where(lower < 0, 0, upper & ~(differ >> 1))
    return value_of(tl.where(is_mirrored, ~roundest, roundest))


@triton.jit
def _least_and_largest(least_a, largest_a, least_b, largest_b):
    return tl.minimum(least_a, least_b), tl.maximum(largest_a, largest_b)


@triton.jit
def only_value(x, low, high):
    """Return the value of the sampled logits in [low, high) if all are equal; otherwise infinity.

    :param x: [2048], some of the row's logits.
    """
    inside = (x >= low) & (x < high)
    first, last = tl.reduce(
        (tl.where(inside, x, float("inf")), tl.where(inside, x, float("-inf"))), 0, _least_and_largest
    )
    return tl.where(first == last, first, float("inf"))


@triton.jit
def next_pivots(
    bracket, at_low, at_high, target, scale, width, tied_value, is_second, ULP_STEP: tl.constexpr
):
    """Return four pivots inside a bracket, or towards its open end.

    Two pivots lie around the point where a straight line meets the target. The other two lie around a value with many
    ties, since no other pivots would separate these; or, in the second pass, further away.

    :param bracket: :class:`~.bracket.Bracket`.
    :param at_low: weight of the row, or its number of logits, from the low end upwards; ``at_high`` from the high end.
    :param scale: the :class:`~.row_values.RowScale` of the row.
    :param width: the distance from the first to the last pivot of the previous pass.
    :param tied_value: the only sampled value in the bracket; infinity if there is none.
    """
    low, high, max_logit = bracket.low, bracket.high, scale.max_logit
    reach = tl.maximum(width, tl.abs(max_logit) * _MIN_RELATIVE_STEP)
    is_tied = tied_value < float("inf")
    is_bracketed = (bracket.low_column >= 0) & (bracket.high_column >= 0)
    shared_value = tl.where(is_tied, tied_value, _roundest_between(low, high, ULP_STEP))
    if is_bracketed:
        slope = tl.where(scale.scale < 0, LARGEST, scale.scale)
        base = tl.maximum(low, tl.minimum(max_logit - 1.0 / slope * WEIGHTLESS_LOG2, high))
        gap = high - base
        inside_bracket = at_low - at_high
        inner = gap * tl.minimum(
            tl.maximum((at_low - target) / tl.maximum(inside_bracket, MIN_DEPTH), 0.0), 1.0
        )
        is_wide = inside_bracket > target * _MAX_LINEAR_SHARE
        above = base + tl.where(
            is_wide, inner + (gap - inner) * _UPPER_PIVOT_SHARE, inner + _NEAR_SHARE * gap
        )
        below = base + tl.where(
            is_wide, inner + (gap - inner) * _LOWER_PIVOT_SHARE, inner - _NEAR_SHARE * gap
        )
        is_far = is_second & (is_tied == 0) & (is_wide == 0)
        upper = tl.where(is_far, base + inner + _FAR_SHARE * gap, value_of(key_of(shared_value) + ULP_STEP))
        lower = tl.where(is_far, base + inner - _FAR_SHARE * gap, shared_value)
    else:
        is_above = bracket.high_column < 0
        above = tl.where(is_above, low + 4.0 * reach, high - reach)
        below = tl.where(is_above, low + reach, high - 16.0 * reach)
        upper = tl.where(is_above, max_logit, high - 4.0 * reach)
        lower = tl.minimum(tl.where(is_above, low + 16.0 * reach, low), upper)
        upper = tl.where(is_tied, value_of(key_of(shared_value) + ULP_STEP), upper)
        lower = tl.where(is_tied, shared_value, lower)
    p0, p3 = tl.maximum(above, upper), tl.minimum(below, lower)
    a, b = tl.minimum(above, upper), tl.maximum(below, lower)
    return PerPivot(p0, tl.maximum(a, b), tl.minimum(a, b), p3)
