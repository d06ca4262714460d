"""The drawn token's rank: how many logits are at least as large, counted over groups of tiles.

Reads of a row the granules whose maximum reaches the drawn logit, each once: all of a flat row, next to nothing of a
peaked one. Adds to one integer a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.tile_layout import (
    GRANULE_LANES,
    GRANULES_PER_HALF,
    GRANULES_PER_TILE,
    LANES,
    TILE_SIZE,
    element_ids,
    lane_sums,
)

RANK_SPAN = 8
"""Tiles a program."""


@triton.jit(
    do_not_specialize=["tiles", "rows"],
    do_not_specialize_on_alignment=["token_ids", "maxima", "ranks"],  # scalar reads and writes
)
def count_ranks(
    logits,
    tiles,
    rows,
    token_ids,
    maxima,
    granules,
    ranks,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Each program counts in ``SPAN`` neighbouring tiles of a row. Grid (rows * groups of tiles).

    :param logits: :class:`~.argument_groups.Logits`.
    :param maxima: [rows, tiles], as :class:`~.argument_groups.TileStatistics` has them, and ``granules`` [rows,
        tiles, 16].
    :param ranks: [rows] int64, 0 at first; V where the drawn logit is -inf.
    """
    groups = (tiles + SPAN - 1) // SPAN
    # The last rows first: launch 1 read them last, so a part of them is still in the cache.
    row = (rows - 1 - tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    base = logits.base + row * logits.row_stride
    tile = group * SPAN + tl.arange(0, SPAN)
    maximum = tl.load(maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    x = tl.load(base + tl.load(token_ids + row)).to(tl.float32)
    if x > float("-inf"):
        if tl.max(maximum, 0) >= x:
            CHUNKS: tl.constexpr = TILE_SIZE // (LANES * VECTOR)
            offset = tl.arange(0, LANES)[:, None, None] // GRANULE_LANES
            offset += tl.arange(0, CHUNKS)[None, None, :] // (CHUNKS // 2) * GRANULES_PER_HALF
            offset += tile[None, :, None] * GRANULES_PER_TILE
            granule_max = tl.load(
                granules + row * tiles * GRANULES_PER_TILE + offset,
                mask=(tile < tiles)[None, :, None],
                other=float("-inf"),
            )
            is_read = (granule_max.to(tl.float32) >= x)[:, :, :, None]
            ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, VECTOR)
            if (group + 1) * (SPAN * TILE_SIZE) <= logits.vocab_size:
                logit = tl.load(base + ids, mask=is_read, other=float("-inf"))
            else:
                logit = tl.load(base + ids, mask=is_read & (ids < logits.vocab_size), other=float("-inf"))
            number = lane_sums((logit.to(tl.float32) >= x).to(tl.int32))
            tl.atomic_add(ranks + row, tl.sum(tl.sum(number, 1), 0).to(tl.int64), sem="relaxed")
    elif group == 0:
        tl.store(ranks + row, logits.vocab_size.to(tl.int64))
