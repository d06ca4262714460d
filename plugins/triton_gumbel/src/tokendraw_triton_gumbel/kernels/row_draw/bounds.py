"""Bounds below which no token is kept, proven by maxima: of the tiles, or of the granules where tiles prove too little.

A maximum is a token, so as many tokens reach a value as maxima do: where those suffice for top-k, its threshold is
not below. Maxima of tiles are compared in registers, twice, with 32 pivots at once; those of granules are read anew
for each comparison, with 8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST

_GRANULE_PIVOTS = tl.constexpr(8)
_GRANULE_TURNS = tl.constexpr(4)
"""Comparisons with all granules, of which the first tells whether others are worth it."""
_AT_ONCE = tl.constexpr(1024)
"""Granules that are compared at once."""
_REACH = tl.constexpr(-12.0)
"""The first pivots lie below the maximum by powers of two of the range, from one to 2 ** -12 of it."""


@triton.jit
def _closer(number, target, pivot, low, high):
    """Return (the largest pivot that ``target`` maxima reach, the least that fewer do), or what was known before."""
    high = tl.minimum(high, tl.min(tl.where(number < target, pivot, high), 0))
    return tl.maximum(low, tl.max(tl.where(number >= target, pivot, low), 0)), high


@triton.jit
def _far_pivots(low, top, PIVOTS: tl.constexpr):
    """Return values from ``low`` upwards, at distances from the maximum that grow."""
    return top - (top - low) * tl.exp2((tl.arange(0, PIVOTS) + 1).to(tl.float32) * (_REACH / PIVOTS))


@triton.jit
def _even_pivots(low, high, PIVOTS: tl.constexpr):
    return low + (high - low) * ((tl.arange(0, PIVOTS) + 1).to(tl.float32) * (1.0 / (PIVOTS + 1)))


@triton.jit
def bound_by_tiles(maximum, top, low, number, k, TILES: tl.constexpr, IS_NVIDIA: tl.constexpr = False):
    """Return a value that at least ``k`` maxima reach, about the largest; -inf if there are fewer.

    :param maximum: [TILES] float32, -inf beyond the tiles.
    :param low: the least of them that is finite, ``number`` how many are.
    """
    PIVOTS: tl.constexpr = 32 if TILES <= 512 else 8  # that many comparisons a maximum
    TURNS: tl.constexpr = 2 if TILES <= 512 else 3
    proven = number >= k
    high = top
    pivot = _far_pivots(low, top, PIVOTS)
    for _ in tl.static_range(TURNS):
        reach = tl.sum(reaches(maximum[:, None], pivot[None, :], IS_NVIDIA), 0)
        low, high = _closer(reach, k, pivot, low, high)
        pivot = _even_pivots(low, high, PIVOTS)
    return tl.where(proven, low, float("-inf"))


@triton.jit
def _compare_granules(granules, count, pivot, top):
    """Return (how many maxima reach each of the pivots; the least that is finite, or ``top``)."""
    number = tl.zeros((_GRANULE_PIVOTS,), tl.int32)
    least = tl.zeros((_AT_ONCE,), tl.float32) + top
    start = 0
    while start < count:
        g = start + tl.arange(0, _AT_ONCE)
        x = tl.load(granules + g, mask=g < count, other=float("-inf")).to(tl.float32)
        number += tl.sum((x[:, None] >= pivot[None, :]).to(tl.int32), 0)
        least = tl.where(x > float("-inf"), tl.minimum(least, x), least)
        start += _AT_ONCE
    return number, tl.min(least, 0)


@triton.jit(noinline=True)
def bound_by_granules(granules, count, low, top, k, most):
    """Return a value that at least ``k`` maxima of the granules reach; -inf if there are fewer from ``low`` upwards.

    It is ``top`` where those that equal it suffice; otherwise -inf where more than ``most`` of them reach it.

    :param granules: [count] maxima, in memory.
    :param low: a value below which there is no use in looking.
    """
    low = tl.maximum(low, LOWEST)
    high = top
    bound = tl.full((), float("-inf"), tl.float32)
    pivot = tl.where(tl.arange(0, _GRANULE_PIVOTS) == 0, low, top)
    reach = tl.full((), 0, tl.int32)
    turn = 0
    while turn < _GRANULE_TURNS:
        number, least = _compare_granules(granules, count, pivot, top)
        fewest = tl.min(number, 0)
        if turn == 0:
            reach = tl.max(number, 0)
            low = tl.maximum(low, least)
            pivot = _far_pivots(low, top, _GRANULE_PIVOTS)
            # Those that reach the maximum are the fewest, those that reach the low end the most.
            bound = tl.where(fewest >= k, top, bound)
            turn = tl.where((fewest >= k) | (reach < k), _GRANULE_TURNS + 1, 1).to(tl.int32)
        else:
            reach = tl.minimum(reach, tl.min(tl.where(number >= k, number, reach), 0))
            low, high = _closer(number, k, pivot, low, high)
            pivot = _even_pivots(low, high, _GRANULE_PIVOTS)
            turn += 1
    return tl.where((turn == _GRANULE_TURNS) & (reach <= most), low, bound)
