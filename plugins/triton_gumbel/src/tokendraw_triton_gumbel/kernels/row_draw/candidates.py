"""Candidates of a row: the granules whose maximum reaches a bound, and of them the logits that do.

Reads the maxima of all granules, then those granules, then the candidates. Writes 4 bytes a granule and a candidate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import lowest_bit
from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULE_SIZE, GRANULES_PER_TILE, granule_ids

_TILES_AT_ONCE = tl.constexpr(256)
"""Tiles whose granules are looked at at once."""
_NEIGHBOURS = tl.constexpr(8)
"""Elements whose hits one thread writes."""
_EXPECTED = tl.constexpr(2)
"""Hits among them that the common path is prepared for."""
_ONE = tl.constexpr(65536)
"""A count of one, added up beside eight bits, or beside a count."""


@triton.jit
def _list_hits(hit, first, listed, found, most, ROWS: tl.constexpr, EIGHTS: tl.constexpr):
    """Write the numbers of those that hit, ascending; return how many there are now, written or not.

    Eight neighbours are written by one thread. Few of them hit: it is prepared for two, and makes a detour for more.

    :param hit: [ROWS, EIGHTS * 8] float32, 1.0 or 0.0.
    :param first: [ROWS, 1] int32: the number of the first of a row.
    :param listed: [most] int32, of which ``found`` are written.
    """
    place = tl.arange(0, EIGHTS * _NEIGHBOURS) % _NEIGHBOURS
    mark = (((place * 0 + 1) << place) + _ONE).to(tl.float32)  # float32 holds these integers, and their sums
    both = tl.sum(tl.reshape(hit * mark[None, :], (ROWS, EIGHTS, _NEIGHBOURS)), 2).to(tl.int32)
    mask = tl.reshape(both & 255, (ROWS * EIGHTS,))
    label = tl.reshape(first + tl.arange(0, EIGHTS)[None, :] * _NEIGHBOURS, (ROWS * EIGHTS,))
    number = tl.reshape(both >> 16, (ROWS * EIGHTS,))
    before = tl.cumsum(number, 0) - number + found
    counted = tl.sum(number + tl.where(number > _EXPECTED, _ONE, 0), 0)
    number = tl.minimum(before + number, most) - before
    for i in tl.static_range(_EXPECTED):
        tl.store(listed + before + i, label + lowest_bit(mask), mask=number > i)
        mask &= mask - 1
    if counted >= _ONE:
        more = _EXPECTED
        end = tl.max(number, 0)  # the compiler does not know it, so that it does not unroll the loop
        while more < end:
            tl.store(listed + before + more, label + lowest_bit(mask), mask=number > more)
            mask &= mask - 1
            more += 1
    return found + (counted & (_ONE - 1))


@triton.jit
def list_granules(granules, tiles, bound, listed, most, IS_NVIDIA: tl.constexpr = False):
    """List the granules that reach ``bound``, ascending; return how many, listed or not.

    :param granules: [tiles, 16] maxima.
    :param listed: [most] int32 of scratch.
    """
    found = 0
    start = 0
    while start < tiles:
        tile = start + tl.arange(0, _TILES_AT_ONCE)[:, None]
        place = tile * GRANULES_PER_TILE + tl.arange(0, GRANULES_PER_TILE)[None, :]
        x = tl.load(granules + place, mask=tile < tiles, other=float("-inf")).to(tl.float32)
        first = tile * GRANULES_PER_TILE
        hit = reaches(x, bound, IS_NVIDIA)
        found = _list_hits(hit, first, listed, found, most, _TILES_AT_ONCE, GRANULES_PER_TILE // _NEIGHBOURS)
        start += _TILES_AT_ONCE
    tl.debug_barrier()
    return found


@triton.jit
def list_candidates(
    row,
    granules,
    count,
    bound,
    listed,
    VECTOR: tl.constexpr,
    MOST: tl.constexpr,
    AT_ONCE: tl.constexpr,
    IS_NVIDIA: tl.constexpr = False,
):
    """List where the logits from ``bound`` upwards stand, tile by tile; return how many, listed or not.

    :param granules: [count] int32, as :func:`list_granules` leaves them.
    :param listed: [MOST] int32 of scratch, for :func:`load_candidates`.
    :param AT_ONCE: granules that are read at once.
    """
    element = tl.arange(0, GRANULE_SIZE)
    found = 0
    start = 0
    while start < count:
        slot = start + tl.arange(0, AT_ONCE)
        granule = tl.load(granules + slot, mask=slot < count, other=0)
        token = granule_ids(granule[:, None], element[None, :], VECTOR)
        inside = (slot < count)[:, None] & (token < row.vocab_size)
        x = tl.load(row.base + token, mask=inside, other=float("-inf")).to(tl.float32)
        first = granule[:, None] * GRANULE_SIZE
        hit = reaches(x, bound, IS_NVIDIA)
        found = _list_hits(hit, first, listed, found, MOST, AT_ONCE, GRANULE_SIZE // _NEIGHBOURS)
        start = tl.where(found > MOST, count, start + AT_ONCE)
    tl.debug_barrier()
    return found


@triton.jit
def load_candidates(base, listed, found, VECTOR: tl.constexpr, N: tl.constexpr):
    """Return (logits, their ids) of what is listed; behind it -inf, and the largest int32: [N] each."""
    i = tl.arange(0, N)
    place = tl.load(listed + i, mask=i < found, other=0)
    token = granule_ids(place // GRANULE_SIZE, place % GRANULE_SIZE, VECTOR)
    x = tl.load(base + token, mask=i < found, other=float("-inf")).to(tl.float32)
    return x, tl.where(i < found, token, INT32_MAX)
