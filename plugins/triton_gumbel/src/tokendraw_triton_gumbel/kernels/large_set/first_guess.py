"""Guesses where the threshold of a row of a large set lies: pivots for the pass that then proves it.

From a sample of 2048 logits, or from the maxima of the row's granules where the threshold is likely to lie among those.
What a guess says is never taken for true: the worse it is, the more a row costs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.pivots import PerPivot, write_pivots
from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, key_of, value_of

_RUNS = tl.constexpr(256)
_RUN = tl.constexpr(8)
_SEEN = tl.constexpr(2048)
"""Runs of neighbouring logits in a sample, logits a run, and all of them; maxima are as many at most."""
_BINS = tl.constexpr(256)
"""Bins of the histogram of what was seen."""
WEIGHTLESS = tl.constexpr(87.0)
"""Powers of two below the largest logit: what lies lower weighs nothing."""
LEAST_DEPTH = tl.constexpr(1e-30)
_MOST_DEPTH = tl.constexpr(3e38)
_MARGIN = tl.constexpr(1.0001)
"""The bins reach a bit beyond the least logit that weighs anything."""
_NEAR = tl.constexpr(1.0)
_FAR = tl.constexpr(4.0)
"""Standard errors from the guess to the pivots."""


@triton.jit
def load_sample(row):
    """Return 2048 logits [2048] float32, in runs of 8 that lie evenly; -inf for NaN."""
    sample = tl.arange(0, _SEEN)
    start = ((sample // _RUN).to(tl.int64) * row.vocab_size // _RUNS).to(tl.int32) & -16
    place = start + sample % _RUN
    x = tl.load(row.base + place, mask=place < row.vocab_size, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def _load_maxima(granules, number, stride):
    """Return the largest of every ``stride`` neighbouring maxima: [2048] float32."""
    place = tl.arange(0, _SEEN) * stride
    x = tl.zeros((_SEEN,), tl.float32) + float("-inf")
    for i in range(stride):
        own = tl.load(granules + place + i, mask=place + i < number, other=float("-inf")).to(tl.float32)
        x = tl.maximum(x, own)
    return x


@triton.jit
def _range(low_a, number_a, low_b, number_b):
    return tl.minimum(low_a, low_b), number_a + number_b


@triton.jit
def _add_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _largest_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return tl.maximum(a0, b0), tl.maximum(a1, b1), tl.maximum(a2, b2), tl.maximum(a3, b3)


@triton.jit
def _depth_at(target, before, reached, edge, added, from_below):
    """Return where the running sum reaches ``target``, in bins from the largest logit; -1 in other bins."""
    within = (target - before) / tl.maximum(added, LEAST_DEPTH)
    depth = tl.where(from_below, edge + 1.0 - within, edge + within)
    return tl.where((before < target) & (reached >= target), depth, -1.0)


@triton.jit
def _value_at(depth, target, top, width, least, from_below):
    """Return the value at a depth; where nothing is reached, the one end or the other."""
    beyond = tl.where(from_below == (target <= 0), least, top)
    return tl.minimum(tl.maximum(tl.where(depth >= 0, top - depth * width, beyond), least), top)


@triton.jit(noinline=True)
def write_guess(
    row, granules, number, scale, least, target, by_mass, by_maxima, reals, ULP_STEP: tl.constexpr
):
    """Write four pivots around the value from which upwards the row weighs ``target``, to ``reals``: [4] float32.

    A histogram says what lies beyond each of 256 edges, and how far what was seen may stray. A logit of a sample stands
    for as many as were passed over, and what lies below the threshold is summed, which leaves out the heaviest. The
    largest logit of a granule is seen if no other one there hides it: the lower it is, the more it stands for.

    :param granules: [number] maxima of the row, in memory; ``by_maxima`` whether to look at them.
    :param scale: the :class:`~.row_values.RowScale` of the row.
    :param least: a value below which there is no use in looking.
    :param target: mass relative to the largest logit's, if ``by_mass``; otherwise a number of logits.
    """
    top = scale.top
    steep = tl.where(scale.scale < 0, LARGEST, scale.scale)
    from_below = by_mass & (by_maxima == 0)
    sought = tl.where(from_below, scale.mass - target, target)
    if by_maxima:
        x = _load_maxima(granules, number, (number + _SEEN - 1) // _SEEN)
    else:
        x = load_sample(row)
    some = x > float("-inf")
    lowest, hidden = tl.reduce((tl.where(some, x, top), (some == 0).to(tl.int32)), 0, _range)
    depth = tl.minimum(1.0 / steep * WEIGHTLESS, top - lowest)
    depth = tl.maximum(tl.minimum(depth, _MOST_DEPTH), LEAST_DEPTH)
    width = depth * _MARGIN / _BINS
    bin_of = tl.minimum(tl.maximum((top - tl.where(some, x, top)) / width, 0.0), _BINS - 1.0).to(tl.int32)
    b = tl.arange(0, _BINS)
    counted = (tl.histogram(bin_of, _BINS) - tl.where(b == 0, hidden, 0)).to(tl.float32)
    edge = b.to(tl.float32)
    weight = tl.where(by_mass, tl.exp2(-(edge + 0.5) * width * steep), 1.0)
    each = tl.zeros_like(edge) + row.vocab_size.to(tl.float32) * (1.0 / _SEEN)
    missed = each
    if by_maxima:
        shown = tl.cumsum(counted, 0)
        all_shown = tl.maximum(tl.max(shown, 0), 1.0)
        each = all_shown / tl.maximum(all_shown - shown + 0.5 * counted, 0.5)
        missed = each - 1.0
    added = counted * each * weight
    # Summed from the end that is measured; a bin is crossed where the sum reaches the target within it.
    upwards, downwards = tl.associative_scan((added, added * weight * missed), 0, _add_two)
    all_added, all_strays = tl.reduce((added, added * weight * missed), 0, _add_two)
    reached = tl.where(from_below, all_added - upwards + added, upwards)
    strays = tl.where(from_below, all_strays - downwards + added * weight * missed, downwards)
    before = reached - added
    error = tl.sqrt(tl.maximum(tl.max(tl.where(before < sought, strays, 0.0), 0), 0.0))
    error = tl.where(from_below, error, -error)
    t0 = sought + error * _FAR
    t1 = sought + error * _NEAR
    t2 = sought - error * _NEAR
    t3 = sought - error * _FAR
    d0, d1, d2, d3 = tl.reduce(
        (
            _depth_at(t0, before, reached, edge, added, from_below),
            _depth_at(t1, before, reached, edge, added, from_below),
            _depth_at(t2, before, reached, edge, added, from_below),
            _depth_at(t3, before, reached, edge, added, from_below),
        ),
        0,
        _largest_four,
    )
    bottom = tl.maximum(least, top - depth)
    guess = PerPivot(
        _value_at(d0, t0, top, width, bottom, from_below),
        _value_at(d1, t1, top, width, bottom, from_below),
        _value_at(d2, t2, top, width, bottom, from_below),
        _value_at(d3, t3, top, width, bottom, from_below),
    )
    write_pivots(reals, _snap_pivots(x, guess, bottom, ULP_STEP), least, top, ULP_STEP)


@triton.jit
def _ends(low_a, high_a, below_a, above_a, low_b, high_b, below_b, above_b):
    return (
        tl.minimum(low_a, low_b),
        tl.maximum(high_a, high_b),
        tl.maximum(below_a, below_b),
        tl.minimum(above_a, above_b),
    )


@triton.jit
def _snap_pivots(x, pivots, least, ULP_STEP: tl.constexpr):
    """Move the two inner pivots to both sides of a value that occurs several times, so that ties are settled by them.

    That is the only value between them, of those that were seen; if there is none, the nearest one.

    :param x: [2048], some of the row's logits.
    """
    p1, p2 = pivots.p1, pivots.p2
    inside = (x >= p2) & (x < p1)
    first, last, below, above = tl.reduce(
        (
            tl.where(inside, x, float("inf")),
            tl.where(inside, x, float("-inf")),
            tl.where((x < p2) & (x >= least), x, float("-inf")),
            tl.where(x >= p1, x, float("inf")),
        ),
        0,
        _ends,
    )
    nearest = tl.where(above - p1 < p2 - below, above, below)
    empty = last == float("-inf")
    value = tl.where(empty, nearest, first)
    tied = (tl.sum((x == value).to(tl.int32), 0) > 1).to(tl.int32) * (tl.abs(value) < float("inf")).to(
        tl.int32
    )
    tied *= (empty.to(tl.int32) + (first == last).to(tl.int32) > 0).to(tl.int32)
    low = tl.where(tied > 0, value, p2)
    high = tl.where(tied > 0, value_of(key_of(tl.where(tied > 0, value, 0.0)) + ULP_STEP), p1)
    return PerPivot(tl.maximum(pivots.p0, high), high, low, tl.minimum(pivots.p3, low))
