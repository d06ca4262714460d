"""Guesses where the threshold of a row of a large set lies: pivots for the pass that then proves it.

A first guess comes from a sample of 2048 logits, later ones from the bracket. What a guess says is never taken for
true: the worse it is, the more a row costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, LOWEST, key_of, value_of

_RUNS = tl.constexpr(256)
_RUN = tl.constexpr(8)
_SAMPLES = tl.constexpr(2048)
"""Runs of neighbouring logits in a sample, logits a run, and all of them."""
_BINS = tl.constexpr(256)
"""Bins of the histogram of a sample."""
_WEIGHTLESS = tl.constexpr(87.0)
"""Powers of two below the largest logit: what lies lower weighs nothing."""
_LEAST_DEPTH = tl.constexpr(1e-30)
_MOST_DEPTH = tl.constexpr(3e38)
_MARGIN = tl.constexpr(1.0001)
"""The bins reach a bit beyond the least logit that weighs anything."""
_NEAR = tl.constexpr(1.0)
_FAR = tl.constexpr(4.0)
"""Standard errors from the guess to the pivots."""
_NEAR_SHARE = tl.constexpr(0.03)
_FAR_SHARE = tl.constexpr(0.15)
"""Shares of the bracket from where a straight line meets the target to the pivots."""
_RELATIVE = tl.constexpr(1e-6)
"""The least distance of pivots towards an open end, relative to the largest logit."""


class PerPivot(NamedTuple):
    """A value for each of the four pivots of a pass; the pivots themselves descend."""

    p0: Any
    p1: Any
    p2: Any
    p3: Any


@triton.jit
def load_pivots(reals):
    """Return the pivots of the current pass."""
    return PerPivot(tl.load(reals), tl.load(reals + 1), tl.load(reals + 2), tl.load(reals + 3))


@triton.jit
def _as_pivot(pivot, low, top, ULP_STEP: tl.constexpr):
    pivot = tl.minimum(tl.maximum(pivot, LOWEST), LARGEST)
    if ULP_STEP > 1:
        pivot = pivot.to(tl.bfloat16).to(tl.float32)  # and perhaps out of the bracket
    return tl.minimum(tl.maximum(pivot, low), tl.maximum(top, low))


@triton.jit
def write_pivots(reals, pivots, low, top, ULP_STEP: tl.constexpr):
    """Write pivots as a pass takes them: in [low, top]; of bfloat16 logits such values."""
    tl.store(reals, _as_pivot(pivots.p0, low, top, ULP_STEP))
    tl.store(reals + 1, _as_pivot(pivots.p1, low, top, ULP_STEP))
    tl.store(reals + 2, _as_pivot(pivots.p2, low, top, ULP_STEP))
    tl.store(reals + 3, _as_pivot(pivots.p3, low, top, ULP_STEP))


@triton.jit
def load_sample(row):
    """Return 2048 logits [2048] float32, in runs of 8 that lie evenly; -inf for NaN."""
    sample = tl.arange(0, _SAMPLES)
    start = ((sample // _RUN).to(tl.int64) * row.vocab_size // _RUNS).to(tl.int32) & -16
    place = start + sample % _RUN
    x = tl.load(row.base + place, mask=place < row.vocab_size, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf"))


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
def _depth_at(target, before, reached, edge, added, by_mass):
    """Return where the running sum reaches ``target``, in bins from the largest logit; -1 in other bins."""
    within = (target - before) / tl.maximum(added, _LEAST_DEPTH)
    depth = tl.where(by_mass, edge + 1.0 - within, edge + within)
    return tl.where((before < target) & (reached >= target), depth, -1.0)


@triton.jit
def _value_at(depth, target, top, width, least, by_mass):
    """Return the value at a depth; where nothing is reached, the one end or the other."""
    beyond = tl.where(by_mass == (target <= 0), least, top)
    return tl.minimum(tl.maximum(tl.where(depth >= 0, top - depth * width, beyond), least), top)


@triton.jit
def _guess_pivots(x, vocab_size, top, scale, least, target, by_mass, ULP_STEP: tl.constexpr):
    """Return four pivots around the value from which upwards the row weighs ``target``.

    A histogram of the sample says how much lies below each of 256 edges, and how far a sample of that size strays.

    :param x: [2048], a sample of the row.
    :param target: mass relative to the largest logit's, if ``by_mass``: the mass below; otherwise a number of tokens.
    """
    scale = tl.where(scale < 0, LARGEST, scale)
    some = x > float("-inf")
    lowest, hidden = tl.reduce((tl.where(some, x, top), (some == 0).to(tl.int32)), 0, _range)
    depth = tl.minimum(1.0 / scale * _WEIGHTLESS, top - lowest)
    depth = tl.maximum(tl.minimum(depth, _MOST_DEPTH), _LEAST_DEPTH)
    width = depth * _MARGIN / _BINS
    bin_of = tl.minimum(tl.maximum((top - tl.where(some, x, top)) / width, 0.0), _BINS - 1.0).to(tl.int32)
    b = tl.arange(0, _BINS)
    number = (tl.histogram(bin_of, _BINS) - tl.where(b == 0, hidden, 0)).to(tl.float32)
    edge = b.to(tl.float32)
    weight = vocab_size.to(tl.float32) / _SAMPLES
    weight *= tl.where(by_mass, tl.exp2(-(edge + 0.5) * width * scale), 1.0)
    added = number * weight
    # Summed from the end that is measured; a bin is crossed where the sum reaches the target within it.
    upwards, downwards = tl.associative_scan((added, added * weight), 0, _add_two)
    all_added, all_strays = tl.reduce((added, added * weight), 0, _add_two)
    reached = tl.where(by_mass, all_added - upwards + added, upwards)
    strays = tl.where(by_mass, all_strays - downwards + added * weight, downwards)
    before = reached - added
    error = tl.sqrt(tl.maximum(tl.max(tl.where(before < target, strays, 0.0), 0), 0.0))
    error = tl.where(by_mass, error, -error)
    t0 = target + error * _FAR
    t1 = target + error * _NEAR
    t2 = target - error * _NEAR
    t3 = target - error * _FAR
    d0, d1, d2, d3 = tl.reduce(
        (
            _depth_at(t0, before, reached, edge, added, by_mass),
            _depth_at(t1, before, reached, edge, added, by_mass),
            _depth_at(t2, before, reached, edge, added, by_mass),
            _depth_at(t3, before, reached, edge, added, by_mass),
        ),
        0,
        _largest_four,
    )
    guess = PerPivot(
        _value_at(d0, t0, top, width, least, by_mass),
        _value_at(d1, t1, top, width, least, by_mass),
        _value_at(d2, t2, top, width, least, by_mass),
        _value_at(d3, t3, top, width, least, by_mass),
    )
    return snap_pivots(x, guess, least, ULP_STEP)


@triton.jit(noinline=True)
def write_guess(row, top, scale, low, target, by_mass, reals, ULP_STEP: tl.constexpr):
    """Write four guessed pivots to ``reals``: [4] float32. The others as :func:`_guess_pivots` takes them."""
    x = load_sample(row)
    pivots = _guess_pivots(x, row.vocab_size, top, scale, low, target, by_mass, ULP_STEP)
    write_pivots(reals, pivots, low, top, ULP_STEP)


@triton.jit
def _ends(low_a, high_a, below_a, above_a, low_b, high_b, below_b, above_b):
    return (
        tl.minimum(low_a, low_b),
        tl.maximum(high_a, high_b),
        tl.maximum(below_a, below_b),
        tl.minimum(above_a, above_b),
    )


@triton.jit
def snap_pivots(x, pivots, least, ULP_STEP: tl.constexpr):
    """Move the two inner pivots onto values of the sample, so that a row of ties is settled by them.

    They then enclose what lies between them and nothing else; the nearest value if nothing does and that one is tied.
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
    first = tl.where(empty, nearest, first)
    last = tl.where(empty, nearest, last)
    tied = tl.sum((x == nearest).to(tl.int32), 0) > 1
    usable = (tl.abs(first) < float("inf")).to(tl.int32)
    usable *= ((empty == 0).to(tl.int32) + tied.to(tl.int32) > 0).to(tl.int32)
    low = tl.where(usable > 0, first, p2)
    high = tl.where(usable > 0, value_of(key_of(tl.where(usable > 0, last, 0.0)) + ULP_STEP), p1)
    return PerPivot(tl.maximum(pivots.p0, high), high, low, tl.minimum(pivots.p3, low))


@triton.jit
def next_pivots(low, high, low_column, high_column, at_low, at_high, target, top, width):
    """Return four pivots inside the bracket: around where a straight line meets the target, or towards an open end.

    :param at_low: what the row weighs, or how many logits it holds, from ``low`` upwards; ``at_high`` likewise.
    :param width: the distance from the first to the last pivot of the pass before.
    """
    share = (at_low - target) / tl.maximum(at_low - at_high, _LEAST_DEPTH)
    share = tl.minimum(tl.maximum(share, 0.0), 1.0)
    inner = (high - low) * share
    gap = high - low
    p0 = low + tl.minimum(inner + _FAR_SHARE * gap, 0.99 * gap)
    p1 = low + tl.minimum(inner + _NEAR_SHARE * gap, 0.98 * gap)
    p2 = low + tl.maximum(inner - _NEAR_SHARE * gap, 0.02 * gap)
    p3 = low + tl.maximum(inner - _FAR_SHARE * gap, 0.01 * gap)
    reach = tl.maximum(width, tl.abs(top) * _RELATIVE)
    if high_column < 0:
        p0 = top
        p1 = tl.minimum(low + 16.0 * reach, top)
        p2 = tl.minimum(low + 4.0 * reach, top)
        p3 = tl.minimum(low + reach, top)
    elif low_column < 0:
        p0 = tl.maximum(high - reach, low)
        p1 = tl.maximum(high - 4.0 * reach, low)
        p2 = tl.maximum(high - 16.0 * reach, low)
        p3 = low
    return PerPivot(p0, p1, p2, p3)
