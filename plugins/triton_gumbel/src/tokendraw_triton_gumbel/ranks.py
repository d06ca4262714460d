"""The drawn token's rank: how many logits are at least as large, counted over groups of tiles.

Reads of a row the granules whose maximum reaches the drawn logit, each once: all of a flat row, next to nothing of a
peaked one. Adds to one integer a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.tiles import element_ids

SPAN = 8
"""Tiles a program."""


@triton.jit(
    do_not_specialize=["tiles", "rows"],
    do_not_specialize_on_alignment=["token_ids", "maxima", "ranks"],  # read or written one by one
)
def count_ranks(
    logits,
    row_stride,
    vocab_size,
    tiles,
    rows,
    token_ids,
    maxima,
    granules,
    ranks,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """One program: ``SPAN`` neighbouring tiles of one row. Grid (rows * groups of tiles).

    :param maxima: [rows, tiles], as :func:`~tokendraw_triton_gumbel.tiles.tile_statistics` left them, and ``granules``
        [rows, tiles, 16].
    :param ranks: [rows] int64, 0 at first; V where the drawn logit is -inf.
    """
    groups = (tiles + SPAN - 1) // SPAN
    # The last rows first: they were read last, so that some of them are still in the cache.
    row = (rows - 1 - tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    base = logits + row * row_stride
    tile = group * SPAN + tl.arange(0, SPAN)
    maximum = tl.load(maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    x = tl.load(base + tl.load(token_ids + row)).to(tl.float32)
    if x > float("-inf"):
        if tl.max(maximum, 0) >= x:
            lane = tl.arange(0, 32)[:, None]
            place = row * tiles * 16 + tile[None, :] * 16 + lane // 2
            reached = tl.load(granules + place, mask=(tile < tiles)[None, :], other=float("-inf"))
            read = (reached.to(tl.float32) >= x)[:, :, None, None]
            ids = group * (SPAN * 1024) + element_ids(SPAN, VECTOR)
            if (group + 1) * (SPAN * 1024) <= vocab_size:
                logit = tl.load(base + ids, mask=read, other=float("-inf"))
            else:
                logit = tl.load(base + ids, mask=read & (ids < vocab_size), other=float("-inf"))
            logit = logit.to(tl.float32)
            number = tl.sum(tl.sum((logit >= x).to(tl.int32), 3), 2)
            tl.atomic_add(ranks + row, tl.sum(tl.sum(number, 1), 0).to(tl.int64), sem="relaxed")
    elif group == 0:
        tl.store(ranks + row, vocab_size.to(tl.int64))
