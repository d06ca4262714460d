"""Lists tiles of a row for one program, loads their logits, and sums their weight from a value upwards."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.row_state import COLUMNS
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE, element_ids, tile_sums
from tokendraw_triton_gumbel.kernels.shared.unaligned_rows import WORDS, load_logits, word_ids
from tokendraw_triton_gumbel.kernels.shared.weights import weigh


@triton.jit
def list_tiles(maximum, tile, tiles, bound, tile_list):
    """Write the numbers of the tiles that reach ``bound`` to ``tile_list``, ascending; return their number."""
    is_listed = (maximum >= bound) & (tile < tiles)
    offset = tl.cumsum(is_listed.to(tl.int32), 0) - 1
    tl.debug_barrier()  # all threads have read the previous list
    tl.store(tile_list + offset, tile, mask=is_listed)
    tl.debug_barrier()
    return tl.sum(is_listed.to(tl.int32), 0)


@triton.jit
def load_listed(source, tile_list, start, count, config: tl.constexpr):
    """Return the logits of the listed tiles from ``start`` on: [LANES, WARPS, chunks, VECTOR].

    NaN and what lies outside are -inf. With them come the numbers of the tiles, and which of them are listed.
    """
    index = start + tl.arange(0, config.WARPS)
    tile = tl.load(tile_list + index, mask=index < count, other=0)
    if config.IS_ALIGNED:
        ids = element_ids(1, config.VECTOR) + (tile * TILE_SIZE)[None, :, None, None]
        mask = (index < count)[None, :, None, None] & (ids < source.vocab_size)
        x = tl.load(source.base + ids, mask=mask, other=float("-inf")).to(tl.float32)
    else:
        words = (
            word_ids(1, config.VECTOR) + (tile * (TILE_SIZE // config.VECTOR * WORDS))[None, :, None, None]
        )
        last = tl.load(tile_list + tl.minimum(start + config.WARPS, count) - 1)
        is_inner = (last + 1) * TILE_SIZE + config.VECTOR <= source.vocab_size
        x = load_logits(source, words, is_inner, config.IS_NVIDIA)
        x = tl.where((index < count)[None, :, None, None], x, float("-inf"))
    return tl.where(x == x, x, float("-inf")), tile, index < count


@triton.jit
def mass_from(source, tile_list, count, threshold, max_logit, scale, config: tl.constexpr):
    """Return the sum of ``exp(y)`` over ``x >= floor`` in the listed tiles."""
    WARPS: tl.constexpr = config.WARPS
    total = tl.zeros((WARPS,), tl.float32)
    start = 0
    while start < count:
        x, _, _ = load_listed(source, tile_list, start, count, config)
        total += tile_sums(tl.where(x >= threshold, weigh(x, max_logit, scale), 0.0))
        start += config.WARPS
    return tl.sum(total, 0)


@triton.jit
def weigh_listed(source, tile_list, count, threshold, max_logit, scale, weights, config: tl.constexpr):
    """Write the weight of each listed tile from ``threshold`` upwards into the first column of a slot.

    :param weights: the columns of a slot of the row.
    """
    start = 0
    while start < count:
        x, number, inside = load_listed(source, tile_list, start, count, config)
        total = tile_sums(tl.where(x >= threshold, weigh(x, max_logit, scale), 0.0))
        tl.store(weights + number * COLUMNS, total, mask=inside)
        start += config.WARPS
    tl.debug_barrier()
