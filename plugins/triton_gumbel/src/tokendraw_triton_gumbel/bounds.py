"""Bounds below which no token is kept, proven by maxima: of the tiles, or of the granules where tiles prove too little.

Reads the maxima once or twice. A maximum is a token, so as many tokens, or as much mass, reach a value as the maxima
that reach it: where those suffice for top-k or top-p, the threshold is not below.
"""

from __future__ import annotations

import triton
import triton.language as tl

_ROUNDS = tl.constexpr(3)
_HALVINGS = tl.constexpr(12)


@triton.jit
def _add_eight(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7


@triton.jit
def _reach(maximum, pivot):
    return (maximum >= pivot).to(tl.int32)


@triton.jit
def bound_by_tiles(maximum, top, low, number, k):
    """A value that at least ``k`` maxima reach, the largest that three rounds find; -inf if there are fewer.

    Of eight pivots a round, first at distances from the maximum that double, then evenly; one exchange counts for all.

    :param maximum: [TILES] float32, -inf beyond the tiles.
    :param low: the least of them that is finite, ``number`` how many are.
    """
    proven = number >= k
    spread = top - low
    high = top
    for turn in range(_ROUNDS):
        gap = (high - low) * 0.1111111
        at = low
        p0, p1, p2, p3 = low + gap, low + gap * 2, low + gap * 3, low + gap * 4
        p4, p5, p6, p7 = low + gap * 5, low + gap * 6, low + gap * 7, low + gap * 8
        if turn == 0:
            p0, p1, p2, p3 = (
                top - spread * 0.5,
                top - spread * 0.25,
                top - spread * 0.125,
                top - spread * 0.0625,
            )
            p4, p5, p6 = top - spread * 0.03125, top - spread * 0.0078125, top - spread * 0.001953125
            p7 = top - spread * 0.000244140625
        n0, n1, n2, n3, n4, n5, n6, n7 = tl.reduce(
            (
                _reach(maximum, p0),
                _reach(maximum, p1),
                _reach(maximum, p2),
                _reach(maximum, p3),
                _reach(maximum, p4),
                _reach(maximum, p5),
                _reach(maximum, p6),
                _reach(maximum, p7),
            ),
            0,
            _add_eight,
        )
        # Ascending: the last that enough reach, and the one after it.
        at = tl.where(n0 >= k, p0, at)
        at = tl.where(n1 >= k, p1, at)
        at = tl.where(n2 >= k, p2, at)
        at = tl.where(n3 >= k, p3, at)
        at = tl.where(n4 >= k, p4, at)
        at = tl.where(n5 >= k, p5, at)
        at = tl.where(n6 >= k, p6, at)
        at = tl.where(n7 >= k, p7, at)
        high = tl.where(n7 < k, p7, high)
        high = tl.where(n6 < k, p6, high)
        high = tl.where(n5 < k, p5, high)
        high = tl.where(n4 < k, p4, high)
        high = tl.where(n3 < k, p3, high)
        high = tl.where(n2 < k, p2, high)
        high = tl.where(n1 < k, p1, high)
        high = tl.where(n0 < k, p0, high)
        low = at
    return tl.where(proven, low, float("-inf"))


@triton.jit
def _weight_from(x, low, top, scale, by_mass):
    """Worked out anew each time: the weights would fill the registers of the whole kernel."""
    weight = tl.where(by_mass, tl.exp2((x - top) * scale), 1.0)
    return tl.sum(tl.where((x >= low) & (x > float("-inf")), weight, 0.0), 0)


@triton.jit
def bound_by_granules(granules, count, low, top, scale, target, by_mass, SPAN: tl.constexpr):
    """A value from which upwards the maxima of the granules weigh ``target``; -inf if all are too light.

    :param granules: [count] maxima, in memory.
    :param low: a value below which there is no use in looking.
    :param by_mass: whether a maximum weighs ``exp(y)``, or 1.
    """
    g = tl.arange(0, SPAN)
    x = tl.load(granules + g, mask=g < count, other=float("-inf")).to(tl.float32)
    low = tl.maximum(low, tl.min(tl.where(x > float("-inf"), x, float("inf")), 0))
    high = top
    proven = _weight_from(x, low, top, scale, by_mass) >= target
    if proven:
        for turn in range(_HALVINGS):
            # At first nearer to the maximum by halves, however far the least lies below it.
            middle = tl.where(turn < 4, high - (high - low) * 0.125, low * 0.5 + high * 0.5)
            enough = _weight_from(x, middle, top, scale, by_mass) >= target
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
    return tl.where(proven, low, float("-inf"))
