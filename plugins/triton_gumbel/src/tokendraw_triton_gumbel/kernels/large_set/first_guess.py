"""Guesses where the threshold of a row of a large set lies: pivots for the pass that then proves it.

From a sample of 2048 logits, or from the maxima of the row's granules where the threshold is likely to lie among those.
What a guess says is never taken for true: the worse it is, the more a row costs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot, write_pivots
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, key_of, value_of

_RUNS_LOG2 = tl.constexpr(8)
_RUN = tl.constexpr(8)
_SEEN = tl.constexpr(2048)
"""A sample has 2 ** 8 runs of 8 neighbouring logits, 2048 in all; maxima are as many at most."""
_AT_ONCE = tl.constexpr(512)
_TURNS = tl.constexpr(4)
"""Values that are counted at once, and how often that is done: all at once would be four times the code."""
_BINS = tl.constexpr(256)
"""Bins of the histogram of what was seen; fewer show the heaviest logits too roughly."""
WEIGHTLESS = tl.constexpr(87.0)
"""Powers of two below the largest logit: what lies lower weighs nothing."""
LEAST_DEPTH = tl.constexpr(1e-30)
_MOST_DEPTH = tl.constexpr(3e38)
_MARGIN = tl.constexpr(1.0001)
"""The bins reach a bit beyond the least logit that weighs anything."""
_NEAR = tl.constexpr(1.0)
_FAR = tl.constexpr(4.0)
"""Standard errors from the guess to the pivots."""
_MOST_SHOWN = tl.constexpr(0.93)
"""The share of granules that may hold a token of the nucleus: beyond, each of their maxima hides too many others."""


@triton.jit
def load_sample(row):
    """Return 2048 logits [2048] float32, in runs of 8 that lie evenly; -inf for NaN."""
    return _load_even(row.base, row.vocab_size, row.vocab_size, 1, -16)


@triton.jit
def _load_even(base, number, spread, stride, aligned):
    """Return the largest of every ``stride`` neighbours in 256 runs of 8 such: [2048] float32; -inf for NaN.

    :param number: of values; runs begin at ``spread`` times multiples of 1/256, less the bits not in ``aligned``.
        Products fit an int32, since no vocabulary has more than 2 ** 21 ids.
    """
    seen = tl.arange(0, _SEEN)
    place = ((seen // _RUN * spread >> _RUNS_LOG2) & aligned) + seen % _RUN * stride
    x = tl.full((_SEEN,), float("-inf"), tl.float32)
    i = 0
    while i < stride:
        own = tl.load(base + place, mask=place < number, other=float("-inf")).to(tl.float32)
        x = tl.where(own > x, own, x)
        place += 1
        i += 1
    return x


@triton.jit
def _add_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _crossed(target, before, one_over):
    """Return the share of each bin that lies before the place where the running sum reaches ``target``."""
    return tl.minimum(tl.maximum((target - before) * one_over, 0.0), 1.0)


@triton.jit
def _count_by_bin(bin_of):
    """Return the histogram of [2048] bins: [256] int32."""
    bin_of = tl.reshape(bin_of, (_TURNS, _AT_ONCE))
    turn = tl.arange(0, _TURNS)[:, None]
    counted = tl.zeros((_BINS,), tl.int32)
    i = 0
    while i < _TURNS:
        counted += tl.histogram(tl.sum(tl.where(turn == i, bin_of, 0), 0), _BINS)
        i += 1
    return counted


@triton.jit(noinline=True)
def write_guess(
    row, granules, number, scale, least, target, by_mass, by_maxima, reals, ULP_STEP: tl.constexpr
):
    """Write four pivots around the value from which upwards the row weighs ``target``, to ``reals``: [4] float32.

    A histogram says what lies beyond each of 255 edges, and how far what was seen may stray. A logit of a sample stands
    for as many as were passed over, and what lies below the threshold is summed, which leaves out the heaviest. The
    largest logit of a granule is seen if no other one there hides it: the lower it is, the more it stands for. If
    nearly all granules show one of the nucleus, too many are hidden, and a sample is taken.

    :param granules: [number] maxima of the row, in memory; ``by_maxima`` whether to look at them.
    :param scale: the :class:`~.row_values.RowScale` of the row.
    :param least: a value below which there is no use in looking.
    :param target: mass relative to the largest logit's, if ``by_mass``; otherwise a number of logits.
    """
    top = scale.top
    steep = tl.where(scale.scale < 0, LARGEST, scale.scale)
    by_maxima = by_maxima.to(tl.int32)
    looking = tl.full((), 1, tl.int32)
    while looking > 0:
        from_below = by_mass & (by_maxima == 0)
        sought = tl.where(from_below, scale.mass - target, target)
        stride = tl.where(by_maxima > 0, (number + _SEEN - 1) // _SEEN, 1)
        x = _load_even(
            tl.where(by_maxima > 0, granules, row.base),
            tl.where(by_maxima > 0, number, row.vocab_size),
            tl.where(by_maxima > 0, stride * _SEEN, row.vocab_size),
            stride,
            tl.where(by_maxima > 0, -1, -16),
        )
        some = x > float("-inf")
        depth = top - tl.min(tl.where(some, x, top), 0)
        depth = tl.maximum(tl.minimum(tl.minimum(1.0 / steep * WEIGHTLESS, depth), _MOST_DEPTH), LEAST_DEPTH)
        width = depth * _MARGIN / (_BINS - 1)
        # From the end that is measured; the last bin is that of what is not there.
        origin = tl.where(from_below, top - depth, top)
        step = tl.where(from_below, width, -width)
        within = tl.minimum(tl.maximum((x - origin) * (1.0 / step), 0.0), _BINS - 2.0)
        b = tl.arange(0, _BINS)
        counted = _count_by_bin(tl.where(some, within, _BINS - 1.0).to(tl.int32))
        counted = tl.where(b < _BINS - 1, counted, 0).to(tl.float32)
        middle = (b.to(tl.float32) + 0.5) * width
        below = tl.where(from_below, tl.maximum(depth - middle, 0.0), middle)
        weight = tl.where(by_mass, tl.exp2(-below * steep), 1.0)
        each = tl.zeros_like(weight) + row.vocab_size.to(tl.float32) * (1.0 / _SEEN)
        missed = each
        all_shown = tl.sum(counted, 0)
        if by_maxima > 0:
            some_shown = tl.maximum(all_shown, 1.0)
            each = some_shown / tl.maximum(some_shown - tl.cumsum(counted, 0) + 0.5 * counted, 0.5)
            missed = each - 1.0
        added = counted * each * weight
        before = tl.cumsum(added, 0) - added
        passed = before < sought
        strays, shown = tl.reduce(
            (tl.where(passed, added * weight * missed, 0.0), tl.where(passed, counted, 0.0)), 0, _add_two
        )
        looking = by_maxima * (shown > all_shown * _MOST_SHOWN).to(tl.int32)
        if looking == 0:
            error = tl.sqrt(tl.maximum(strays, 0.0)) * tl.where(from_below, 1.0, -1.0)
            one_over = 1.0 / tl.maximum(added, LEAST_DEPTH)
            d0, d1, d2, d3 = tl.reduce(
                (
                    _crossed(sought + error * _FAR, before, one_over),
                    _crossed(sought + error * _NEAR, before, one_over),
                    _crossed(sought - error * _NEAR, before, one_over),
                    _crossed(sought - error * _FAR, before, one_over),
                ),
                0,
                _add_four,
            )
            bottom = tl.maximum(least, top - depth)
            guess = PerPivot(
                tl.minimum(tl.maximum(origin + d0 * step, bottom), top),
                tl.minimum(tl.maximum(origin + d1 * step, bottom), top),
                tl.minimum(tl.maximum(origin + d2 * step, bottom), top),
                tl.minimum(tl.maximum(origin + d3 * step, bottom), top),
            )
            write_pivots(reals, _snap_pivots(x, guess, bottom, ULP_STEP), least, top, ULP_STEP)
        by_maxima *= 0


@triton.jit
def _nearest(above_a, below_a, above_b, below_b):
    return tl.minimum(above_a, above_b), tl.maximum(below_a, below_b)


@triton.jit
def _snap_pivots(x, pivots, least, ULP_STEP: tl.constexpr):
    """Move the two inner pivots to both sides of a value that occurs several times, so that ties are settled by them.

    That is the only value between them, of those that were seen; if there is none, the nearest one.

    :param x: [2048], some of the row's logits.
    """
    p1, p2 = pivots.p1, pivots.p2
    # If there is a value between the two, the least one and the largest; otherwise, their neighbours.
    above, below = tl.reduce(
        (tl.where(x >= p2, x, float("inf")), tl.where(x < p1, x, float("-inf"))), 0, _nearest
    )
    empty = above >= p1
    below = tl.where(below >= least, below, float("-inf"))
    value = tl.where(empty & (p2 - below <= above - p1), below, above)
    tied = (tl.sum((x == value).to(tl.int32), 0) > 1).to(tl.int32)
    tied *= (tl.abs(value) < float("inf")).to(tl.int32)
    tied *= (empty.to(tl.int32) + (above == below).to(tl.int32) > 0).to(tl.int32)
    low = tl.where(tied > 0, value, p2)
    high = tl.where(tied > 0, value_of(key_of(tl.where(tied > 0, value, 0.0)) + ULP_STEP), p1)
    return PerPivot(tl.maximum(pivots.p0, high), high, low, tl.minimum(pivots.p3, low))
