"""The draw of a row that keeps few tokens: candidates are collected once, and everything else happens in registers.

Reads the tiles whose maximum reaches a bound below which no token can be kept; writes at most 8 bytes a candidate and
reads them back. No sort: a comparison of all candidates with each other gives for each of them the count and the mass of
the strictly greater ones, so ties are kept by construction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.noise import gumbel
from tokendraw_triton_gumbel.search import list_tiles, load_tiles, weigh

FEW = 128
"""Candidates that are compared with each other."""
_BLOCK = tl.constexpr(4)


@triton.jit
def collect_few(base, vocab_size, listed, count, low, values, ids, FEW: tl.constexpr):
    """Write the values from ``low`` upwards and their ids, ascending; returns how many there are, written or not."""
    found = 0
    start = 0
    while start < count:
        x, tile, _ = load_tiles(base, vocab_size, listed, start, count)
        token = tile[:, None] * 1024 + tl.arange(0, 1024)[None, :]
        flat = tl.reshape((x >= low).to(tl.int32), (_BLOCK * 1024,))
        place = found + tl.cumsum(flat, 0) - 1
        wanted = (flat > 0) & (place < FEW)
        tl.store(values + place, tl.reshape(x, (_BLOCK * 1024,)), mask=wanted)
        tl.store(ids + place, tl.reshape(token, (_BLOCK * 1024,)), mask=wanted)
        found += tl.sum(flat, 0)
        start = tl.where(found > FEW, count, start + _BLOCK)
    tl.debug_barrier()
    return found


@triton.jit
def draw_few(
    base,
    vocab_size,
    maximum,
    tile,
    tiles,
    listed,
    values,
    ids,
    low,
    top,
    scale,
    inverse,
    mass,
    k,
    p,
    least,
    joint,
    seed,
    position,
    FP64: tl.constexpr,
    FEW: tl.constexpr,
):
    """The token of a row, or -1 if more than ``FEW`` logits are at least ``low``.

    :param low: as :func:`~tokendraw_triton_gumbel.filters.bound_of` finds it.
    :param least: the floor of min-p; -inf if it is off.
    :param k: [1, V), or 0 if top-k is off; ``p`` in float64, 1 if top-p is off.
    :param mass: the sum of ``exp(y)`` over the whole row.
    """
    count = list_tiles(maximum, tile, tiles, low, listed)
    found = collect_few(base, vocab_size, listed, count, low, values, ids, FEW)
    token = tl.full((), -1, tl.int32)
    if found <= FEW:
        i = tl.arange(0, FEW)
        x = tl.load(values + i, mask=i < found, other=float("-inf"))
        others = tl.load(values + i, mask=i < found, other=float("-inf"))[:, None]
        weight = weigh(x, top, scale, True)
        weights = weigh(others, top, scale, True)
        greater = others > x[None, :]
        number = tl.sum(greater.to(tl.int32), 0)
        above = tl.sum(tl.where(greater, weights, 0.0), 0)
        kept = (i < found) & (number < tl.where(k > 0, k, FEW)) & (x >= least)
        others_on = (k > 0).to(tl.int32) + (least > float("-inf")).to(tl.int32)
        left = tl.sum(tl.where(kept, weight, 0.0), 0)
        counted = tl.where(others_on * (joint == 0).to(tl.int32) > 0, left, mass)
        target = (p * counted.to(tl.float64)).to(tl.float32)
        target = tl.where(p < 1, target, float("inf"))
        kept = kept & ((above < target) | (number == 0))
        floor = tl.min(tl.where(kept, x, float("inf")), 0)

        id_of = tl.load(ids + i, mask=i < found, other=0)
        tile_of = id_of // 1024
        tiles_of = (tl.load(ids + i, mask=i < found, other=-1024) // 1024)[:, None]
        same = (tiles_of == tile_of[None, :]) & (others >= floor)
        total = tl.sum(tl.where(same, weights, 0.0), 0)
        score = gumbel(seed, position, tile_of, 1, FP64)
        score += tl.log(tl.where(kept, total, 1.0).to(score.dtype))
        best = tl.argmax(tl.where(kept, score, float("-inf")), 0)
        chosen = tl.sum(tl.where(i == best, tile_of, 0), 0)
        score = gumbel(seed, position, id_of, 0, FP64)
        score += (x.to(score.dtype) - top.to(score.dtype)) * inverse.to(score.dtype)
        best = tl.argmax(tl.where(kept & (tile_of == chosen), score, float("-inf")), 0)
        token = tl.sum(tl.where(i == best, id_of, 0), 0)
    return token
