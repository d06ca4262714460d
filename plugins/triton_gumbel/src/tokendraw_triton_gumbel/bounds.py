"""Bounds below which no token is kept, proven by maxima: of the tiles, or of the granules where tiles prove too little.

Reads the maxima once or twice. A maximum is a token, so as many tokens reach a value as maxima do: where those suffice
for top-k, the threshold is not below.
"""

from __future__ import annotations

import triton
import triton.language as tl

_ROUNDS = tl.constexpr(3)


@triton.jit
def _add_eight(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7


@triton.jit
def _pivots(turn, low, high, top, spread):
    """Eight pivots, ascending: the first time at distances from the maximum that double, then evenly."""
    gap = (high - low) * 0.1111111
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
    return p0, p1, p2, p3, p4, p5, p6, p7


@triton.jit
def _reach(maximum, pivot):
    return (maximum >= pivot).to(tl.int32)


@triton.jit
def _bracket(maximum, low, high, top, spread, target, turn):
    """(The last of eight pivots that enough maxima reach, the one behind it), in one exchange."""
    p0, p1, p2, p3, p4, p5, p6, p7 = _pivots(turn, low, high, top, spread)
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
    at = low
    at = tl.where(n0 >= target, p0, at)
    at = tl.where(n1 >= target, p1, at)
    at = tl.where(n2 >= target, p2, at)
    at = tl.where(n3 >= target, p3, at)
    at = tl.where(n4 >= target, p4, at)
    at = tl.where(n5 >= target, p5, at)
    at = tl.where(n6 >= target, p6, at)
    at = tl.where(n7 >= target, p7, at)
    high = tl.where(n7 < target, p7, high)
    high = tl.where(n6 < target, p6, high)
    high = tl.where(n5 < target, p5, high)
    high = tl.where(n4 < target, p4, high)
    high = tl.where(n3 < target, p3, high)
    high = tl.where(n2 < target, p2, high)
    high = tl.where(n1 < target, p1, high)
    high = tl.where(n0 < target, p0, high)
    return at, high


@triton.jit
def bound_by_tiles(maximum, top, low, number, k):
    """A value that at least ``k`` maxima reach, the largest that three rounds find; -inf if there are fewer.

    :param maximum: [TILES] float32, -inf beyond the tiles.
    :param low: the least of them that is finite, ``number`` how many are.
    """
    proven = number >= k
    spread = top - low
    high = top
    for turn in range(_ROUNDS):
        low, high = _bracket(maximum, low, high, top, spread, k, turn)
    return tl.where(proven, low, float("-inf"))


@triton.jit
def _survey(least_a, number_a, ties_a, least_b, number_b, ties_b):
    return tl.minimum(least_a, least_b), number_a + number_b, ties_a + ties_b


@triton.jit
def bound_by_granules(granules, count, low, top, k, most, SPAN: tl.constexpr):
    """A value that at least ``k`` maxima of the granules reach; -inf if there are fewer from ``low`` upwards.

    It is ``top`` where those that equal it suffice; otherwise -inf where more than ``most`` of them reach it.

    :param granules: [count] maxima, in memory.
    :param low: a value below which there is no use in looking.
    """
    g = tl.arange(0, SPAN)
    x = tl.load(granules + g, mask=g < count, other=float("-inf")).to(tl.float32)
    finite = x > float("-inf")
    least, number, ties = tl.reduce(
        (
            tl.where(finite, x, float("inf")),
            (finite & (x >= low)).to(tl.int32),
            (finite & (x >= top)).to(tl.int32),
        ),
        0,
        _survey,
    )
    low = tl.maximum(low, least)
    if ties >= k:
        low = top
    elif number >= k:
        spread = top - low
        high = top
        for turn in range(_ROUNDS):
            low, high = _bracket(x, low, high, top, spread, k, turn)
        if tl.sum((x >= low).to(tl.int32), 0) > most:
            low = tl.full((), float("-inf"), tl.float32)
    else:
        low = tl.full((), float("-inf"), tl.float32)
    return low
