"""Candidates of a row: the granules whose maximum reaches a bound, and of them the logits that do.

Reads the maxima of all granules, then those granules, then the candidates. Writes 4 bytes a granule and a candidate.
"""

from __future__ import annotations

import triton
import triton.language as tl

_BLOCK = tl.constexpr(256)
"""Tiles whose granules are looked at at once."""
_ONE = tl.constexpr(65536)
"""Added up beside eight bits, or beside a count."""


@triton.jit
def _list_hits(hit, first, listed, found, MOST: tl.constexpr, ROWS: tl.constexpr, EIGHTS: tl.constexpr):
    """Write the numbers of those that hit, ascending; returns how many there are now, written or not.

    Eight neighbours are written by one thread. Few of them hit: it is prepared for two, and makes a detour for more.

    :param hit: [ROWS, EIGHTS * 8].
    :param first: [ROWS, 1] int32: the number of the first of a row.
    :param listed: [MOST] int32, of which ``found`` are written.
    """
    place = tl.arange(0, EIGHTS * 8) % 8
    both = tl.where(hit, ((place * 0 + 1) << place)[None, :] + _ONE, 0)
    both = tl.sum(tl.reshape(both, (ROWS, EIGHTS, 8)), 2)
    which = tl.reshape(both & 255, (ROWS * EIGHTS,))
    label = tl.reshape(first + tl.arange(0, EIGHTS)[None, :] * 8, (ROWS * EIGHTS,))
    number = tl.reshape(both >> 16, (ROWS * EIGHTS,))
    before = tl.cumsum(number, 0) - number + found
    counted = tl.sum(number + tl.where(number > 2, _ONE, 0), 0)
    number = tl.minimum(before + number, MOST) - before
    for i in tl.static_range(2):
        tl.store(listed + before + i, label + _lowest(which), mask=number > i)
        which &= which - 1
    if counted >= _ONE:
        for i in tl.static_range(2, 8):
            tl.store(listed + before + i, label + _lowest(which), mask=number > i)
            which &= which - 1
    return found + (counted & (_ONE - 1))


@triton.jit
def _lowest(which):
    """The place of the lowest bit that is set: the exponent of a power of two."""
    return ((which & -which).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def list_granules(granules, tiles, bound, listed, MOST: tl.constexpr):
    """List the granules that reach ``bound``, ascending; returns how many, listed or not.

    :param granules: [tiles, 16] maxima.
    :param listed: [MOST] int32 of scratch.
    """
    found = 0
    start = 0
    while start < tiles:
        tile = start + tl.arange(0, _BLOCK)[:, None]
        place = tile * 16 + tl.arange(0, 16)[None, :]
        x = tl.load(granules + place, mask=tile < tiles, other=float("-inf")).to(tl.float32)
        found = _list_hits(x >= bound, tile * 16, listed, found, MOST, _BLOCK, 2)
        start += _BLOCK
    tl.debug_barrier()
    return found


@triton.jit
def list_candidates(
    base,
    vocab_size,
    granules,
    count,
    bound,
    listed,
    VECTOR: tl.constexpr,
    MOST: tl.constexpr,
    GATHERED: tl.constexpr,
):
    """List where the logits from ``bound`` upwards stand, tile by tile; returns how many, listed or not.

    :param granules: [count] int32, as :func:`list_granules` leaves them.
    :param listed: [MOST] int32 of scratch, for :func:`load_candidates`.
    """
    e = tl.arange(0, 64)
    found = 0
    start = 0
    while start < count:
        slot = start + tl.arange(0, GATHERED)
        granule = tl.load(granules + slot, mask=slot < count, other=0)
        token = _token_of(granule[:, None], e[None, :], VECTOR)
        x = tl.load(
            base + token, mask=(slot < count)[:, None] & (token < vocab_size), other=float("-inf")
        ).to(tl.float32)
        found = _list_hits(x >= bound, granule[:, None] * 64, listed, found, MOST, GATHERED, 8)
        start = tl.where(found > MOST, count, start + GATHERED)
    tl.debug_barrier()
    return found


@triton.jit
def load_candidates(base, listed, found, VECTOR: tl.constexpr, N: tl.constexpr):
    """(Logits, their ids) of what is listed; behind it -inf, and the largest int32: [N] each."""
    i = tl.arange(0, N)
    place = tl.load(listed + i, mask=i < found, other=0)
    token = _token_of(place // 64, place % 64, VECTOR)
    x = tl.load(base + token, mask=i < found, other=float("-inf")).to(tl.float32)
    return x, tl.where(i < found, token, 2147483647)


@triton.jit
def _token_of(granule, e, VECTOR: tl.constexpr):
    """The id of logit e of a granule: runs of two vectors."""
    first = (granule // 16) * 1024 + (granule % 16) * (2 * VECTOR)
    return first + (e // (2 * VECTOR)) * (32 * VECTOR) + e % (2 * VECTOR)
