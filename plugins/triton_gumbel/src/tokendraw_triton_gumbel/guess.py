"""Where the threshold of a wide row lies, guessed from a sample: pivots for the pass that then proves it.

Reads 2048 logits a row. What a guess says is never taken for true: the worse it is, the more a row costs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.order import LARGEST, key_of, value_of

_RUNS = tl.constexpr(256)
_RUN = tl.constexpr(8)
_SAMPLES = tl.constexpr(2048)
_BINS = tl.constexpr(256)
_DEEPEST = tl.constexpr(87.0)
"""Powers of two below the largest logit: what lies lower weighs nothing."""
_NEAR = tl.constexpr(1.0)
_FAR = tl.constexpr(4.0)
"""Standard errors from the guess to the pivots."""


@triton.jit
def sample_of(base, vocab_size):
    """2048 logits [2048] float32, in runs of 8 that lie evenly; -inf for NaN."""
    sample = tl.arange(0, _SAMPLES)
    start = ((sample // _RUN).to(tl.int64) * vocab_size // _RUNS).to(tl.int32) & -16
    place = start + sample % _RUN
    x = tl.load(base + place, mask=place < vocab_size, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def _range(low_a, number_a, low_b, number_b):
    return tl.minimum(low_a, low_b), number_a + number_b


@triton.jit
def _add_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _most(a0, a1, a2, a3, b0, b1, b2, b3):
    return tl.maximum(a0, b0), tl.maximum(a1, b1), tl.maximum(a2, b2), tl.maximum(a3, b3)


@triton.jit
def _depth_at(target, before, reached, edge, added, by_mass):
    """In bins from the largest logit, where the running sum reaches ``target``; -1 in every bin where it does not."""
    within = (target - before) / tl.maximum(added, 1e-30)
    depth = tl.where(by_mass, edge + 1.0 - within, edge + within)
    return tl.where((before < target) & (reached >= target), depth, -1.0)


@triton.jit
def _value_at(depth, target, top, width, least, by_mass):
    """Where nothing is reached, the one end or the other."""
    beyond = tl.where(by_mass == (target <= 0), least, top)
    return tl.minimum(tl.maximum(tl.where(depth >= 0, top - depth * width, beyond), least), top)


@triton.jit
def guess_pivots(x, vocab_size, top, scale, least, target, by_mass, BY: tl.constexpr):
    """Four pivots, descending, around the value from which upwards the row weighs ``target``.

    A histogram of the sample says how much lies below each of 256 edges, and how far a sample of that size strays.

    :param x: [2048], a sample of the row.
    :param target: mass relative to the largest logit's, if ``by_mass``: the mass below; otherwise a number of tokens.
    :param BY: from one value of the logits' dtype to the next, in the order of float32.
    """
    scale = tl.where(scale < 0, LARGEST, scale)
    some = x > float("-inf")
    lowest, hidden = tl.reduce((tl.where(some, x, top), (some == 0).to(tl.int32)), 0, _range)
    depth = tl.minimum(1.0 / scale * _DEEPEST, top - lowest)
    depth = tl.maximum(tl.minimum(depth, 3e38), 1e-30)
    width = depth * 1.0001 / _BINS
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
    t0, t1, t2, t3 = (
        target + error * _FAR,
        target + error * _NEAR,
        target - error * _NEAR,
        target - error * _FAR,
    )
    d0, d1, d2, d3 = tl.reduce(
        (
            _depth_at(t0, before, reached, edge, added, by_mass),
            _depth_at(t1, before, reached, edge, added, by_mass),
            _depth_at(t2, before, reached, edge, added, by_mass),
            _depth_at(t3, before, reached, edge, added, by_mass),
        ),
        0,
        _most,
    )
    return snapped(
        x,
        _value_at(d0, t0, top, width, least, by_mass),
        _value_at(d1, t1, top, width, least, by_mass),
        _value_at(d2, t2, top, width, least, by_mass),
        _value_at(d3, t3, top, width, least, by_mass),
        least,
        BY,
    )


@triton.jit
def _ends(low_a, high_a, below_a, above_a, low_b, high_b, below_b, above_b):
    return (
        tl.minimum(low_a, low_b),
        tl.maximum(high_a, high_b),
        tl.maximum(below_a, below_b),
        tl.minimum(above_a, above_b),
    )


@triton.jit
def snapped(x, p0, p1, p2, p3, least, BY: tl.constexpr):
    """The pivots with the two inner ones moved onto values of the sample, so that a row of ties is settled by them.

    They then enclose what lies between them and nothing else; the nearest value if nothing does and that one is tied.
    """
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
    usable = (tl.abs(first) < float("inf")).to(tl.int32)
    usable *= ((empty == 0).to(tl.int32) + (tl.sum((x == nearest).to(tl.int32), 0) > 1).to(tl.int32) > 0).to(
        tl.int32
    )
    low = tl.where(usable > 0, first, p2)
    high = tl.where(usable > 0, value_of(key_of(tl.where(usable > 0, last, 0.0)) + BY), p1)
    return tl.maximum(p0, high), high, low, tl.minimum(p3, low)


@triton.jit
def next_pivots(low, high, low_column, high_column, at_low, at_high, target, top, width):
    """Four pivots inside the bracket: around where a straight line meets the target, or towards an open end."""
    share = (at_low - target) / tl.maximum(at_low - at_high, 1e-30)
    share = tl.minimum(tl.maximum(share, 0.0), 1.0)
    inner = (high - low) * share
    gap = high - low
    p0 = low + tl.minimum(inner + 0.15 * gap, 0.99 * gap)
    p1 = low + tl.minimum(inner + 0.03 * gap, 0.98 * gap)
    p2 = low + tl.maximum(inner - 0.03 * gap, 0.02 * gap)
    p3 = low + tl.maximum(inner - 0.15 * gap, 0.01 * gap)
    reach = tl.maximum(width, tl.abs(top) * 1e-6)
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
    return p0, p1, p2, p3
