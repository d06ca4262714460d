"""Collects the logits of a bracket in one pass: reads the granules that reach its low end, writes 4 bytes a logit.

A program marks the logits of its tiles by bits, and makes a list of all bits at the end. Programs share the list of a
row, so the logits come in any order: what is computed from them does not depend on it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.passes.group_load import as_logits, load_granules
from tokendraw_triton_gumbel.kernels.large_set.passes.hits import bits_of_hits, next_hit
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLUMNS,
    HIGH,
    LOW,
    MAX_COLLECTED,
    NUM_COLLECTED,
    UNIT_COLUMN,
)
from tokendraw_triton_gumbel.kernels.shared.bits import count_bits
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE, LANES, TILE_SIZE

_MAX_TILES = tl.constexpr(256)
"""Tiles whose bits fit the scratch of a program: a word each of 32 lanes."""
_WORDS_AT_ONCE = tl.constexpr(512)


@triton.jit
def _granule_maxima(granules, group, end_group, tiles, SPAN: tl.constexpr):
    """Return the maximum of the granule of each lane, [LANES, SPAN]; -inf from ``end_group`` on."""
    tile = (group * SPAN + tl.arange(0, SPAN))[None, :]
    granule = tl.arange(0, LANES)[:, None] // (LANES // GRANULES_PER_TILE)
    inside = (tile < tiles) & (group < end_group)
    maxima = tl.load(granules + tile * GRANULES_PER_TILE + granule, mask=inside, other=float("-inf"))
    return maxima.to(tl.float32)


@triton.jit
def _mark(row, granules, group, end_group, tiles, low, high, units, words, config: tl.constexpr):
    """Write a word of bits for each lane and tile, tile by tile, and 0 for the weight of each tile."""
    SPAN: tl.constexpr = config.WARPS
    first = group
    next_maxima = _granule_maxima(granules, group, end_group, tiles, SPAN)
    next_block = load_granules(row, group, next_maxima >= low, config)
    next_maxima = _granule_maxima(granules, group + 1, end_group, tiles, SPAN)
    while group < end_group:
        x = as_logits(next_block, row, config)
        if group + 1 < end_group:
            next_block = load_granules(row, group + 1, next_maxima >= low, config)
        next_maxima = _granule_maxima(granules, group + 2, end_group, tiles, SPAN)
        word = (
            (group - first) * SPAN * LANES
            + tl.arange(0, SPAN)[None, :] * LANES
            + tl.arange(0, LANES)[:, None]
        )
        tl.store(words + word, bits_of_hits(x, low, high, config.VECTOR))
        tile = group * SPAN + tl.arange(0, SPAN)
        zero = tl.zeros((SPAN,), tl.int64)
        tl.store(units + tile * (COLUMNS // 2) + UNIT_COLUMN, zero, mask=tile < tiles)
        group += 1
    tl.debug_barrier()


@triton.jit(noinline=True)
def collect_part(
    row, granules, group, end_group, tiles, reals, ints, collected, units, words, config: tl.constexpr
):
    """Append the ids of the bracket's logits to the list of the row, up to its room, and count all of them.

    :param granules: [tiles, 16] maxima of the row.
    :param collected: [MAX_COLLECTED] int32.
    :param units: [tiles, COLUMNS // 2] int64: the weights of the tiles, set to 0 for :mod:`..search.collected_set`.
    :param words: [_MAX_TILES * LANES] int32 of scratch of the program.
    """
    SPAN: tl.constexpr = config.WARPS
    low, high = tl.load(reals + LOW), tl.load(reals + HIGH)
    while group < end_group:
        end = tl.minimum(group + _MAX_TILES // SPAN, end_group)
        _mark(row, granules, group, end, tiles, low, high, units, words, config)
        num_words = (end - group) * SPAN * LANES
        start = 0
        while start < num_words:
            i = start + tl.arange(0, _WORDS_AT_ONCE)
            mask = tl.load(words + i, mask=i < num_words, other=0)
            count = count_bits(mask)
            total = tl.sum(count, 0)
            if total > 0:
                offset = (
                    tl.cumsum(count, 0) - count + tl.atomic_add(ints + NUM_COLLECTED, total, sem="relaxed")
                )
                count = tl.minimum(offset + count, MAX_COLLECTED) - offset
                max_count = tl.max(count, 0)
                first_id = (group * SPAN + i // LANES) * TILE_SIZE
                j = 0
                while j < max_count:
                    id_in_tile, mask = next_hit(mask, i % LANES, config.VECTOR)
                    tl.store(collected + offset + j, first_id + id_in_tile, mask=count > j)
                    j += 1
            start += _WORDS_AT_ONCE
        tl.debug_barrier()  # the words were read
        group = end
