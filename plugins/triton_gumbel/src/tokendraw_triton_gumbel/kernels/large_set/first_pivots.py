"""Guesses the threshold of a row of a large set: four pivots for its first pass, which proves a bracket.

Reads a sample of 2048 logits, or the maxima of the row's granules where these probably show the threshold. A wrong
guess costs time and never a token.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot, write_pivots
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, key_of, value_of

_RUNS_LOG2 = tl.constexpr(8)
_RUN_LENGTH = tl.constexpr(8)
_SAMPLE_SIZE = tl.constexpr(2048)
"""A sample has 2 ** 8 runs of 8 neighbouring logits, 2048 in all; maxima are as many at most."""
_AT_ONCE = tl.constexpr(512)
_TURNS = tl.constexpr(4)
"""Values counted in a turn, and number of turns: a single turn would be four times the code."""
_BINS = tl.constexpr(256)
"""Bins of the histogram of what was seen; fewer show the heaviest logits too roughly."""
WEIGHTLESS_LOG2 = tl.constexpr(87.0)
"""Powers of two below the largest logit: what lies lower weighs nothing."""
MIN_DEPTH = tl.constexpr(1e-30)
_MAX_DEPTH = tl.constexpr(3e38)
_MARGIN = tl.constexpr(1.0001)
"""The bins reach a bit beyond the least logit that weighs anything."""
_INNER_STANDARD_ERRORS = tl.constexpr(1.0)
_OUTER_STANDARD_ERRORS = tl.constexpr(4.0)
"""Standard errors from the guess to the pivots."""
_MAX_VISIBLE_SHARE = tl.constexpr(0.93)
"""Limit of the share of granules with a token of the nucleus: above it, maxima hide too many tokens."""


@triton.jit
def load_sample(row):
    """Return 2048 logits [2048] float32, in evenly spaced runs of 8; -inf for NaN."""
    return _load_runs(row.base, row.vocab_size, row.vocab_size, 1, -16)


@triton.jit
def number_in_row(row, bound):
    """Return how many logits of the row reach a bound at most, by a sample: two standard errors beyond the estimate."""
    number = tl.sum((load_sample(row) >= bound).to(tl.int32), 0).to(tl.float32)
    return (number + 2.0 * tl.sqrt(number)) * row.vocab_size.to(tl.float32) * (1.0 / _SAMPLE_SIZE)


@triton.jit
def _load_runs(base, number, spread, stride, alignment_mask):
    """Load 256 runs of 8 values, each value the largest of ``stride`` neighbours: [2048] float32; -inf for NaN.

    :param number: number of values; runs begin at ``spread`` times multiples of 1/256, rounded by ``alignment_mask``.
        Products fit an int32, since no vocabulary has more than 2 ** 21 ids.
    """
    index = tl.arange(0, _SAMPLE_SIZE)
    offset = ((index // _RUN_LENGTH * spread >> _RUNS_LOG2) & alignment_mask) + index % _RUN_LENGTH * stride
    x = tl.full((_SAMPLE_SIZE,), float("-inf"), tl.float32)
    i = 0
    while i < stride:
        value = tl.load(base + offset, mask=offset < number, other=float("-inf")).to(tl.float32)
        x = tl.where(value > x, value, x)
        offset += 1
        i += 1
    return x


@triton.jit
def _add_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _share_before(target, before, one_over):
    """Return the share of each bin below the point at which the running sum reaches ``target``."""
    return tl.minimum(tl.maximum((target - before) * one_over, 0.0), 1.0)


@triton.jit
def _count_by_bin(bin_of):
    """Return the histogram of [2048] bins: [256] int32."""
    bin_of = tl.reshape(bin_of, (_TURNS, _AT_ONCE))
    turn = tl.arange(0, _TURNS)[:, None]
    bin_counts = tl.zeros((_BINS,), tl.int32)
    i = 0
    while i < _TURNS:
        bin_counts += tl.histogram(tl.sum(tl.where(turn == i, bin_of, 0), 0), _BINS)
        i += 1
    return bin_counts


@triton.jit(noinline=True)
def write_first_pivots(
    row, granules, num_granules, scale, lower_limit, target, by_mass, by_maxima, reals, ULP_STEP: tl.constexpr
):
    """Write four pivots around the value from which upwards the row weighs ``target``, to ``reals``: [4] float32.

    A histogram estimates the mass beyond each of 255 edges, and its variance. A sampled logit represents the skipped
    ones around it; the mass below the threshold is estimated, which leaves out the heaviest logits. A granule's maximum
    hides all smaller logits of the granule: the lower it is, the more logits it represents. If nearly all granules show
    a token of the nucleus, the maxima hide too many, and a sample replaces them.

    :param granules: [num_granules] maxima of the row, in memory; ``by_maxima`` whether to use them.
    :param scale: the :class:`~.row_values.RowScale` of the row.
    :param lower_limit: the lowest useful pivot.
    :param target: mass relative to the largest logit's, if ``by_mass``; otherwise a number of logits.
    """
    max_logit = scale.max_logit
    slope = tl.where(scale.scale < 0, LARGEST, scale.scale)
    by_maxima = by_maxima.to(tl.int32)
    is_open = tl.full((), 1, tl.int32)
    while is_open > 0:
        from_below = by_mass & (by_maxima == 0)
        goal = tl.where(from_below, scale.mass - target, target)
        stride = tl.where(by_maxima > 0, (num_granules + _SAMPLE_SIZE - 1) // _SAMPLE_SIZE, 1)
        x = _load_runs(
            tl.where(by_maxima > 0, granules, row.base),
            tl.where(by_maxima > 0, num_granules, row.vocab_size),
            tl.where(by_maxima > 0, stride * _SAMPLE_SIZE, row.vocab_size),
            stride,
            tl.where(by_maxima > 0, -1, -16),
        )
        is_finite = x > float("-inf")
        depth = max_logit - tl.min(tl.where(is_finite, x, max_logit), 0)
        depth = tl.maximum(
            tl.minimum(tl.minimum(1.0 / slope * WEIGHTLESS_LOG2, depth), _MAX_DEPTH), MIN_DEPTH
        )
        width = depth * _MARGIN / (_BINS - 1)
        # From the measured end; the last bin counts absent values.
        origin = tl.where(from_below, max_logit - depth, max_logit)
        step = tl.where(from_below, width, -width)
        bin_position = tl.minimum(tl.maximum((x - origin) * (1.0 / step), 0.0), _BINS - 2.0)
        b = tl.arange(0, _BINS)
        bin_counts = _count_by_bin(tl.where(is_finite, bin_position, _BINS - 1.0).to(tl.int32))
        bin_counts = tl.where(b < _BINS - 1, bin_counts, 0).to(tl.float32)
        middle = (b.to(tl.float32) + 0.5) * width
        below = tl.where(from_below, tl.maximum(depth - middle, 0.0), middle)
        weight = tl.where(by_mass, tl.exp2(-below * slope), 1.0)
        multiplicity = tl.zeros_like(weight) + row.vocab_size.to(tl.float32) * (1.0 / _SAMPLE_SIZE)
        num_hidden = multiplicity
        all_visible = tl.sum(bin_counts, 0)
        if by_maxima > 0:
            min_visible = tl.maximum(all_visible, 1.0)
            multiplicity = min_visible / tl.maximum(
                min_visible - tl.cumsum(bin_counts, 0) + 0.5 * bin_counts, 0.5
            )
            num_hidden = multiplicity - 1.0
        added = bin_counts * multiplicity * weight
        sum_before = tl.cumsum(added, 0) - added
        is_before_goal = sum_before < goal
        variance, visible_count = tl.reduce(
            (
                tl.where(is_before_goal, added * weight * num_hidden, 0.0),
                tl.where(is_before_goal, bin_counts, 0.0),
            ),
            0,
            _add_two,
        )
        is_open = by_maxima * (visible_count > all_visible * _MAX_VISIBLE_SHARE).to(tl.int32)
        if is_open == 0:
            error = tl.sqrt(tl.maximum(variance, 0.0)) * tl.where(from_below, 1.0, -1.0)
            one_over = 1.0 / tl.maximum(added, MIN_DEPTH)
            d0, d1, d2, d3 = tl.reduce(
                (
                    _share_before(goal + error * _OUTER_STANDARD_ERRORS, sum_before, one_over),
                    _share_before(goal + error * _INNER_STANDARD_ERRORS, sum_before, one_over),
                    _share_before(goal - error * _INNER_STANDARD_ERRORS, sum_before, one_over),
                    _share_before(goal - error * _OUTER_STANDARD_ERRORS, sum_before, one_over),
                ),
                0,
                _add_four,
            )
            bottom = tl.maximum(lower_limit, max_logit - depth)
            guess = PerPivot(
                tl.minimum(tl.maximum(origin + d0 * step, bottom), max_logit),
                tl.minimum(tl.maximum(origin + d1 * step, bottom), max_logit),
                tl.minimum(tl.maximum(origin + d2 * step, bottom), max_logit),
                tl.minimum(tl.maximum(origin + d3 * step, bottom), max_logit),
            )
            write_pivots(reals, _snap_pivots(x, guess, bottom, ULP_STEP), lower_limit, max_logit, ULP_STEP)
        by_maxima *= 0


@triton.jit
def _nearest(above_a, below_a, above_b, below_b):
    return tl.minimum(above_a, above_b), tl.maximum(below_a, below_b)


@triton.jit
def _snap_pivots(x, pivots, lower_limit, ULP_STEP: tl.constexpr):
    """Move the two inner pivots around a value that occurs several times, so that they decide its ties.

    The value is the only sampled one between the two pivots; without one, the nearest sampled value.

    :param x: [2048], some of the row's logits.
    """
    p1, p2 = pivots.p1, pivots.p2
    # The least and the largest value between the two pivots; without any, the neighbours of the pivots.
    above, below = tl.reduce(
        (tl.where(x >= p2, x, float("inf")), tl.where(x < p1, x, float("-inf"))), 0, _nearest
    )
    is_empty = above >= p1
    below = tl.where(below >= lower_limit, below, float("-inf"))
    value = tl.where(is_empty & (p2 - below <= above - p1), below, above)
    is_tied = (tl.sum((x == value).to(tl.int32), 0) > 1).to(tl.int32)
    is_tied *= (tl.abs(value) < float("inf")).to(tl.int32)
    is_tied *= (is_empty.to(tl.int32) + (above == below).to(tl.int32) > 0).to(tl.int32)
    low = tl.where(is_tied > 0, value, p2)
    high = tl.where(is_tied > 0, value_of(key_of(tl.where(is_tied > 0, value, 0.0)) + ULP_STEP), p1)
    return PerPivot(tl.maximum(pivots.p0, high), high, low, tl.minimum(pivots.p3, low))
