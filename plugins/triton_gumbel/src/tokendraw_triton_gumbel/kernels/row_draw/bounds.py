"""Computes bounds below which no token is kept, from maxima of tiles, or of granules where tiles prove too little.

A maximum is a token, so at least as many tokens reach a value as maxima do: if k maxima reach it, the threshold of
top-k is not below. Maxima of tiles are compared in registers, twice, with 32 pivots at once; maxima of granules are
read anew for each comparison, with 8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST

_GRANULE_PIVOTS = tl.constexpr(8)
_GRANULE_TURNS = tl.constexpr(4)
"""Comparisons with all granules; the first tells whether more are useful."""
_AT_ONCE = tl.constexpr(1024)
"""Granules compared at once."""
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
def _compare_granules(granules, count, pivot, max_logit):
    """Return (the number of maxima that reach each pivot; the least finite maximum, or ``max_logit``)."""
    number = tl.zeros((_GRANULE_PIVOTS,), tl.int32)
    lowest = tl.zeros((_AT_ONCE,), tl.float32) + max_logit
    start = 0
    while start < count:
        g = start + tl.arange(0, _AT_ONCE)
        x = tl.load(granules + g, mask=g < count, other=float("-inf")).to(tl.float32)
        number += tl.sum((x[:, None] >= pivot[None, :]).to(tl.int32), 0)
        lowest = tl.where(x > float("-inf"), tl.minimum(lowest, x), lowest)
        start += _AT_ONCE
    return number, tl.min(lowest, 0)


@triton.jit(noinline=True)
def bound_by_granules(granules, count, low, max_logit, k, max_count):
    """Return a value that at least ``k`` maxima of the granules reach; -inf if fewer reach ``low``.

    The bound is ``max_logit`` if ``k`` maxima equal it; otherwise -inf if more than ``max_count`` maxima reach it.

    :param granules: [count] maxima, in memory.
    :param low: the lowest useful bound.
    """
    low = tl.maximum(low, LOWEST)
    high = max_logit
    bound = tl.full((), float("-inf"), tl.float32)
    pivot = tl.where(tl.arange(0, _GRANULE_PIVOTS) == 0, low, max_logit)
    reach = tl.full((), 0, tl.int32)
    turn = 0
    while turn < _GRANULE_TURNS:
        number, lowest = _compare_granules(granules, count, pivot, max_logit)
        fewest = tl.min(number, 0)
        if turn == 0:
            reach = tl.max(number, 0)
            low = tl.maximum(low, lowest)
            pivot = _far_pivots(low, max_logit, _GRANULE_PIVOTS)
            # The pivot at the maximum has the lowest count, the pivot at the low end the highest.
            bound = tl.where(fewest >= k, max_logit, bound)
            turn = tl.where((fewest >= k) | (reach < k), _GRANULE_TURNS + 1, 1).to(tl.int32)
        else:
            reach = tl.minimum(reach, tl.min(tl.where(number >= k, number, reach), 0))
            low, high = _narrow_bracket(number, k, pivot, low, high)
            pivot = _even_pivots(low, high, _GRANULE_PIVOTS)
            turn += 1
    return tl.where((turn == _GRANULE_TURNS) & (reach <= max_count), low, bound)
