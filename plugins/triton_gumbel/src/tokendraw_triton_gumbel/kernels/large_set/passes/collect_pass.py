"""Collects the logits of a bracket in one pass: reads the granules that reach its low end, writes 4 bytes a logit.

A program lists the granules of its tiles that reach the low end, marks their logits by bits, and makes a list of all
bits at the end. Programs share the list of a row, so the logits come in any order: what is computed from them does not
depend on it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.passes.group_load import as_logits, load_half_granules
from tokendraw_triton_gumbel.kernels.large_set.passes.hits import bits_of_hits
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLUMNS,
    HIGH,
    LOW,
    MAX_COLLECTED,
    NUM_COLLECTED,
    UNIT_COLUMN,
)
from tokendraw_triton_gumbel.kernels.row_draw.candidates import list_granules
from tokendraw_triton_gumbel.kernels.shared.bits import count_bits, lowest_bit
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE, LANES, granule_ids

_TILES_AT_ONCE = tl.constexpr(128)
"""Tiles whose granules are listed at once."""
_MAX_GRANULES = tl.constexpr(2048)
_WORDS_AT_ONCE = tl.constexpr(256)


@triton.jit
def _mark(row, numbers, count, first_tile, low, high, words, config: tl.constexpr):
    """Write two words of bits for each listed granule: one bit for each logit in [low, high).

    :param numbers: [count] int32: numbers of granules, from the first tile on; at least one.
    """
    SPAN: tl.constexpr = config.WARPS
    half = tl.arange(0, LANES)[:, None] + tl.arange(0, SPAN)[None, :] * LANES
    start = tl.full((), 0, tl.int32)
    next_block = load_half_granules(row, numbers, half, count, first_tile, config)
    while start < count:
        x = as_logits(next_block, row, config)
        next_start = start + SPAN * LANES // 2
        if next_start < count:
            next_block = load_half_granules(
                row, numbers + next_start, half, count - next_start, first_tile, config
            )
        tl.store(
            words + 2 * start + half,
            bits_of_hits(x, low, high, config.VECTOR),
            mask=2 * start + half < 2 * count,
        )
        start = next_start
    tl.debug_barrier()


@triton.jit(noinline=True)
def collect_part(
    row, granules, group, end_group, tiles, reals, ints, collected, units, scratch, config: tl.constexpr
):
    """Append the ids of the bracket's logits to the list of the row, up to its room, and count all of them.

    :param granules: [tiles, 16] maxima of the row.
    :param collected: [MAX_COLLECTED] int32.
    :param units: [tiles, COLUMNS // 2] int64: the weights of the tiles, set to 0 for :mod:`..search.collected_set`.
    :param scratch: [3 * _MAX_GRANULES] int32 of the program.
    """
    low, high = tl.load(reals + LOW), tl.load(reals + HIGH)
    words = scratch + _MAX_GRANULES
    first_tile, end_tile = group * config.WARPS, tl.minimum(end_group * config.WARPS, tiles)
    while first_tile < end_tile:
        tile = first_tile + tl.arange(0, _TILES_AT_ONCE)
        zero = tl.zeros((_TILES_AT_ONCE,), tl.int64)
        tl.store(units + tile * (COLUMNS // 2) + UNIT_COLUMN, zero, mask=tile < end_tile)
        num_granules = list_granules(
            granules + first_tile * GRANULES_PER_TILE,
            tl.minimum(end_tile - first_tile, _TILES_AT_ONCE),
            low,
            scratch,
            _MAX_GRANULES,
            config.IS_NVIDIA,
            _TILES_AT_ONCE,
        )
        if num_granules > 0:
            _mark(row, scratch, num_granules, first_tile, low, high, words, config)
        start = 0
        while start < 2 * num_granules:
            i = start + tl.arange(0, _WORDS_AT_ONCE)
            is_word = i < 2 * num_granules
            mask = tl.load(words + i, mask=is_word, other=0)
            count = count_bits(mask)
            total = tl.sum(count, 0)
            if total > 0:
                offset = (
                    tl.cumsum(count, 0) - count + tl.atomic_add(ints + NUM_COLLECTED, total, sem="relaxed")
                )
                count = tl.minimum(offset + count, MAX_COLLECTED) - offset
                max_count = tl.max(count, 0)
                granule = first_tile * GRANULES_PER_TILE + tl.load(scratch + i // 2, mask=is_word, other=0)
                j = 0
                while j < max_count:
                    bit = lowest_bit(mask)
                    element = (2 * (bit // config.VECTOR) + i % 2) * config.VECTOR + bit % config.VECTOR
                    token = granule_ids(granule, element, config.VECTOR)
                    tl.store(collected + offset + j, token, mask=count > j)
                    mask &= mask - 1
                    j += 1
            start += _WORDS_AT_ONCE
        tl.debug_barrier()  # the words were read
        first_tile += _TILES_AT_ONCE
