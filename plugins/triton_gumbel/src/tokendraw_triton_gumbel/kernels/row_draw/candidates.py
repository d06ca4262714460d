"""Lists the granules whose maximum reaches a bound, and the candidates among their logits.

Reads the maxima of all granules, then the listed granules, then the candidates. Writes 4 bytes a granule and a
candidate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import lowest_bit
from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX
from tokendraw_triton_gumbel.kernels.shared.tile_layout import (
    GRANULE_SIZE,
    GRANULES_PER_TILE,
    TILE_SIZE,
    granule_ids,
)
from tokendraw_triton_gumbel.kernels.shared.unaligned_rows import WORDS, load_logits

_NEIGHBOURS = tl.constexpr(8)
"""Neighbouring elements whose hits a single thread writes."""
_COMMON_HITS = tl.constexpr(2)
"""Hits of a thread on the common path."""
_COUNT_UNIT = tl.constexpr(65536)
"""Unit of a second count in the upper half of a word."""


@triton.jit
def _list_hits(hit, first, numbers, num_found, max_count, ROWS: tl.constexpr, EIGHTS: tl.constexpr):
    """Append the numbers of the hits to a list, ascending; return its new length, which may exceed its room.

    One thread writes the hits of eight neighbours: two on the common path, and more in a loop, since hits are few.

    :param hit: [ROWS, EIGHTS * 8] float32, 1.0 or 0.0.
    :param first: [ROWS, 1] int32: the number of the first element of a row.
    :param numbers: [max_count] int32, the first ``num_found`` written.
    """
    bit = tl.arange(0, EIGHTS * _NEIGHBOURS) % _NEIGHBOURS
    mark = (((bit * 0 + 1) << bit) + _COUNT_UNIT).to(tl.float32)  # integers, and sums, exact in float32
    packed = tl.sum(tl.reshape(hit * mark[None, :], (ROWS, EIGHTS, _NEIGHBOURS)), 2).to(tl.int32)
    mask = tl.reshape(packed & 255, (ROWS * EIGHTS,))
    label = tl.reshape(first + tl.arange(0, EIGHTS)[None, :] * _NEIGHBOURS, (ROWS * EIGHTS,))
    count = tl.reshape(packed >> 16, (ROWS * EIGHTS,))
    start = tl.cumsum(count, 0) - count + num_found
    packed_total = tl.sum(count + tl.where(count > _COMMON_HITS, _COUNT_UNIT, 0), 0)
    count = tl.minimum(start + count, max_count) - start
    for i in tl.static_range(_COMMON_HITS):
        tl.store(numbers + start + i, label + lowest_bit(mask), mask=count > i)
        mask &= mask - 1
    if packed_total >= _COUNT_UNIT:
        index = _COMMON_HITS
        end = tl.max(count, 0)  # unknown to the compiler, which therefore does not unroll the loop
        while index < end:
            tl.store(numbers + start + index, label + lowest_bit(mask), mask=count > index)
            mask &= mask - 1
            index += 1
    return num_found + (packed_total & (_COUNT_UNIT - 1))


@triton.jit
def list_granules(
    granules,
    tiles,
    bound,
    numbers,
    max_count,
    IS_NVIDIA: tl.constexpr = False,
    TILES_AT_ONCE: tl.constexpr = 256,
):
    """List the granules that reach ``bound``, ascending; return their number, which may exceed the list's room.

    :param granules: [tiles, 16] maxima.
    :param numbers: [max_count] int32 of scratch.
    :param TILES_AT_ONCE: tiles whose granules are compared at once.
    """
    num_found = 0
    start = 0
    while start < tiles:
        tile = start + tl.arange(0, TILES_AT_ONCE)[:, None]
        offset = tile * GRANULES_PER_TILE + tl.arange(0, GRANULES_PER_TILE)[None, :]
        x = tl.load(granules + offset, mask=tile < tiles, other=float("-inf")).to(tl.float32)
        first = tile * GRANULES_PER_TILE
        hit = reaches(x, bound, IS_NVIDIA)
        num_found = _list_hits(
            hit, first, numbers, num_found, max_count, TILES_AT_ONCE, GRANULES_PER_TILE // _NEIGHBOURS
        )
        start += TILES_AT_ONCE
    tl.debug_barrier()
    return num_found


@triton.jit
def _load_granules(row, granule, last, VECTOR: tl.constexpr, AT_ONCE: tl.constexpr, IS_NVIDIA: tl.constexpr):
    """Load the granules of a row at any address: [AT_ONCE, GRANULE_SIZE]; -inf behind the row.

    :param granule: [AT_ONCE] int32; ``last`` the largest.
    """
    first_element = tl.arange(0, GRANULE_SIZE // VECTOR)[None, :, None, None] * VECTOR
    token = granule_ids(granule[:, None, None, None], first_element, VECTOR)
    words = token // VECTOR * WORDS + tl.arange(0, WORDS)[None, None, None, :]
    is_inner = (last // GRANULES_PER_TILE + 1) * TILE_SIZE + VECTOR <= row.vocab_size
    x = load_logits(row, words, is_inner, IS_NVIDIA)
    return tl.reshape(x, (AT_ONCE, GRANULE_SIZE))


@triton.jit
def list_candidates(
    row,
    granules,
    count,
    bound,
    numbers,
    VECTOR: tl.constexpr,
    MOST: tl.constexpr,
    AT_ONCE: tl.constexpr,
    IS_NVIDIA: tl.constexpr = False,
    IS_ALIGNED: tl.constexpr = True,
):
    """List where the logits from ``bound`` upwards stand, tile by tile; return how many, listed or not.

    :param granules: [count] int32, as :func:`list_granules` leaves them.
    :param numbers: [MOST] int32 of scratch, for :func:`load_candidates`.
    :param AT_ONCE: granules that are read at once.
    """
    element = tl.arange(0, GRANULE_SIZE)
    num_found = 0
    start = 0
    while start < count:
        slot = start + tl.arange(0, AT_ONCE)
        granule = tl.load(granules + slot, mask=slot < count, other=0)
        if IS_ALIGNED:
            token = granule_ids(granule[:, None], element[None, :], VECTOR)
            inside = (slot < count)[:, None] & (token < row.vocab_size)
            x = tl.load(row.base + token, mask=inside, other=float("-inf")).to(tl.float32)
        else:
            last = tl.load(granules + tl.minimum(start + AT_ONCE, count) - 1)
            x = _load_granules(row, granule, last, VECTOR, AT_ONCE, IS_NVIDIA)
            x = tl.where((slot < count)[:, None], x, float("-inf"))
        first = granule[:, None] * GRANULE_SIZE
        hit = reaches(x, bound, IS_NVIDIA)
        num_found = _list_hits(hit, first, numbers, num_found, MOST, AT_ONCE, GRANULE_SIZE // _NEIGHBOURS)
        start = tl.where(num_found > MOST, count, start + AT_ONCE)
    tl.debug_barrier()
    return num_found


@triton.jit
def load_candidates(base, numbers, num_found, VECTOR: tl.constexpr, N: tl.constexpr):
    """Load (logits, ids) of the listed candidates; beyond them -inf, and the largest int32: [N] each."""
    i = tl.arange(0, N)
    offset = tl.load(numbers + i, mask=i < num_found, other=0)
    token = granule_ids(offset // GRANULE_SIZE, offset % GRANULE_SIZE, VECTOR)
    x = tl.load(base + token, mask=i < num_found, other=float("-inf")).to(tl.float32)
    return x, tl.where(i < num_found, token, INT32_MAX)
