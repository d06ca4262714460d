"""Computes bounds below which no token is kept, from maxima of tiles, or of granules where tiles prove too little.

A maximum is a token, so at least as many tokens reach a value as maxima do: if k maxima reach it, the threshold of
top-k is not below. Maxima of tiles are compared in registers, twice, with 32 pivots at once; maxima of granules are
read anew for each comparison, with 4.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST

_GRANULE_TURNS = tl.constexpr(5)
"""Comparisons with all granules; the first tells whether more are useful."""
_AT_ONCE = tl.constexpr(1024)
"""Granules compared at once."""
_COUNT_UNIT = tl.constexpr(32768)
"""Unit of a second number in the upper half of a word; as many granules, of 2 million ids, prove no bound."""
_PIVOT_RANGE_LOG2 = tl.constexpr(-12.0)
"""The first pivots lie below the maximum by 2 ** 0 to 2 ** -12 times the range."""


@triton.jit
def _narrow_bracket(number, target, pivot, low, high):
    """Return (the largest pivot that ``target`` maxima reach, the least pivot that fewer reach), or the old bounds."""
    high = tl.minimum(high, tl.min(tl.where(number < target, pivot, high), 0))
    return tl.maximum(low, tl.max(tl.where(number >= target, pivot, low), 0)), high


@triton.jit
def _far_pivots(low, max_logit, PIVOTS: tl.constexpr):
    """Return pivots from ``low`` upwards, at growing distances from the maximum."""
    return max_logit - (max_logit - low) * tl.exp2(
        (tl.arange(0, PIVOTS) + 1).to(tl.float32) * (_PIVOT_RANGE_LOG2 / PIVOTS)
    )


@triton.jit
def _even_pivots(low, high, PIVOTS: tl.constexpr):
    return low + (high - low) * ((tl.arange(0, PIVOTS) + 1).to(tl.float32) * (1.0 / (PIVOTS + 1)))


@triton.jit
def bound_by_tiles(maximum, max_logit, low, number, k, TILES: tl.constexpr, IS_NVIDIA: tl.constexpr = False):
    """Return about the largest value that at least ``k`` maxima reach; -inf with fewer maxima.

    :param maximum: [TILES] float32, -inf beyond the tiles.
    :param low: the least finite maximum; ``number`` the number of finite ones.
    """
    PIVOTS: tl.constexpr = 32 if TILES <= 512 else 8  # comparisons a maximum
    TURNS: tl.constexpr = 2 if TILES <= 512 else 3
    has_bound = number >= k
    high = max_logit
    pivot = _far_pivots(low, max_logit, PIVOTS)
    for _ in tl.static_range(TURNS):
        reach = tl.sum(reaches(maximum[:, None], pivot[None, :], IS_NVIDIA), 0)
        low, high = _narrow_bracket(reach, k, pivot, low, high)
        pivot = _even_pivots(low, high, PIVOTS)
    return tl.where(has_bound, low, float("-inf"))


@triton.jit
def _add_two_and_lowest(a0, a1, least_a, b0, b1, least_b):
    return a0 + b0, a1 + b1, tl.minimum(least_a, least_b)


@triton.jit
def _compare_granules(granules, count, pivot_0, pivot_1, pivot_2, pivot_3):
    """Return (the number of maxima that reach each pivot, four; the least finite maximum, or +inf).

    :param count: below ``_COUNT_UNIT``: a word holds two numbers.
    """
    n01 = tl.zeros((_AT_ONCE,), tl.int32)
    n23 = n01
    lowest = tl.full((_AT_ONCE,), float("inf"), tl.float32)
    start = 0
    while start < count:
        g = start + tl.arange(0, _AT_ONCE)
        x = tl.load(granules + g, mask=g < count, other=float("-inf")).to(tl.float32)
        n01 += tl.where(x >= pivot_0, 1, 0) + tl.where(x >= pivot_1, _COUNT_UNIT, 0)
        n23 += tl.where(x >= pivot_2, 1, 0) + tl.where(x >= pivot_3, _COUNT_UNIT, 0)
        lowest = tl.where(x > float("-inf"), tl.minimum(lowest, x), lowest)
        start += _AT_ONCE
    n01, n23, least = tl.reduce((n01, n23, lowest), 0, _add_two_and_lowest)
    return n01 % _COUNT_UNIT, n01 // _COUNT_UNIT, n23 % _COUNT_UNIT, n23 // _COUNT_UNIT, least


@triton.jit(noinline=True)
def bound_by_granules(granules, count, low, max_logit, k, max_count):
    """Return a value that at least ``k`` maxima of the granules reach; -inf if fewer reach ``low``, or are too many.

    The bound is ``max_logit`` if ``k`` maxima equal it; otherwise -inf if more than ``max_count`` maxima reach it.

    :param granules: [count] maxima, in memory.
    :param low: the lowest useful bound.
    """
    low = tl.maximum(low, LOWEST)
    high = max_logit
    pivot_0, pivot_1, pivot_2, pivot_3 = low, low, low, max_logit
    reach = tl.full((), 0, tl.int32)
    turn = tl.where(count < _COUNT_UNIT, 0, _GRANULE_TURNS).to(tl.int32)
    low = tl.where(turn == 0, low, float("-inf"))
    while turn < _GRANULE_TURNS:
        n0, n1, n2, n3, lowest = _compare_granules(granules, count, pivot_0, pivot_1, pivot_2, pivot_3)
        if turn == 0:
            # The pivot at the maximum has the lowest count, the pivot at the low end the highest.
            reach = n0
            low = tl.maximum(low, tl.minimum(lowest, max_logit))
            low = tl.where(n3 >= k, max_logit, low)
            turn = tl.where((n3 >= k) | (n0 < k), _GRANULE_TURNS, 0).to(tl.int32)
            reach = tl.where(n3 >= k, 0, reach)
            low = tl.where(n0 < k, float("-inf"), low)
        elif n3 >= k:
            low, reach = pivot_3, n3
        elif n2 >= k:
            low, reach, high = pivot_2, n2, pivot_3
        elif n1 >= k:
            low, reach, high = pivot_1, n1, pivot_2
        elif n0 >= k:
            low, reach, high = pivot_0, n0, pivot_1
        else:
            high = pivot_0
        # First at distances from the maximum by powers of 8, then evenly.
        width = high - low
        is_far = turn == 0
        pivot_0 = tl.where(is_far, high - width * 0.125, low + width * 0.2)
        pivot_1 = tl.where(is_far, high - width * 0.015625, low + width * 0.4)
        pivot_2 = tl.where(is_far, high - width * 0.001953125, low + width * 0.6)
        pivot_3 = tl.where(is_far, high - width * 0.000244140625, low + width * 0.8)
        turn += 1
    return tl.where(reach <= max_count, low, float("-inf"))
