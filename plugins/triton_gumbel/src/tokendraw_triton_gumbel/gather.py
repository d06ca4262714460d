"""Candidates of a row: the granules whose maximum reaches a bound, and of them the logits that do.

Reads the maxima of the granules of such tiles, then those granules. Writes 4 bytes a granule and 8 a candidate.
"""

from __future__ import annotations

import triton
import triton.language as tl

_BLOCK = tl.constexpr(64)
"""Tiles whose granules are looked at at once."""


@triton.jit
def list_granules(granules, maximum, tile, tiles, bound, hot_tiles, listed, MOST: tl.constexpr):
    """Write the numbers of the granules that reach ``bound``, ascending; returns how many, written or not.

    By way of the tiles that reach it, whose granules alone are read.

    :param hot_tiles: [MOST] int32 of scratch, like ``listed``.
    """
    hot = ((maximum >= bound) & (tile < tiles)).to(tl.int32)
    upto = tl.cumsum(hot, 0)
    tl.store(hot_tiles + upto - 1, tile, mask=(hot > 0) & (upto <= MOST))
    count = tl.max(upto, 0)
    tl.debug_barrier()
    found = tl.where(count <= MOST, 0, count)
    start = tl.where(count <= MOST, 0, count)
    while start < count:
        slot = start + tl.arange(0, _BLOCK)
        hot_tile = tl.load(hot_tiles + slot, mask=slot < count, other=0)
        g = hot_tile[:, None] * 16 + tl.arange(0, 16)[None, :]
        x = tl.load(granules + g, mask=(slot < count)[:, None], other=float("-inf")).to(tl.float32)
        hit = (x >= bound).to(tl.int32)
        number = tl.sum(hit, 1)
        above = tl.cumsum(number, 0)
        place = (found + above - number)[:, None] + tl.cumsum(hit, 1) - 1
        tl.store(listed + place, g, mask=(hit > 0) & (place < MOST))
        found += tl.max(above, 0)
        start += _BLOCK
    tl.debug_barrier()
    return found


@triton.jit
def collect_few(
    base,
    vocab_size,
    listed,
    count,
    bound,
    values,
    ids,
    VECTOR: tl.constexpr,
    MOST: tl.constexpr,
    GATHERED: tl.constexpr,
):
    """Write the logits from ``bound`` upwards and their ids, tile by tile; returns how many, written or not."""
    e = tl.arange(0, 64)
    within = (e // (2 * VECTOR)) * (32 * VECTOR) + e % (2 * VECTOR)
    found = 0
    start = 0
    while start < count:
        slot = start + tl.arange(0, GATHERED)
        granule = tl.load(listed + slot, mask=slot < count, other=0)
        first = (granule // 16) * 1024 + (granule % 16) * (2 * VECTOR)
        token = first[:, None] + within[None, :]
        x = tl.load(
            base + token, mask=(slot < count)[:, None] & (token < vocab_size), other=float("-inf")
        ).to(tl.float32)
        hit = (x >= bound).to(tl.int32)
        number = tl.sum(hit, 1)
        upto = tl.cumsum(number, 0)
        place = (found + upto - number)[:, None] + tl.cumsum(hit, 1) - 1
        wanted = (hit > 0) & (place < MOST)
        tl.store(values + place, x, mask=wanted)
        tl.store(ids + place, token, mask=wanted)
        found += tl.max(upto, 0)
        start = tl.where(found > MOST, count, start + GATHERED)
    tl.debug_barrier()
    return found


@triton.jit
def load_few(values, found, N: tl.constexpr):
    """What was collected, -inf behind it: [N]."""
    i = tl.arange(0, N)
    return tl.load(values + i, mask=i < found, other=float("-inf"))
