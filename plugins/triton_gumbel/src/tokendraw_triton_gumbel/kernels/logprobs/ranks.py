"""The rank of a token: how many are shown with at least its value, counted over groups of tiles.

Reads of a row the granules whose maximum reaches the token's logit, each once: all of a flat row, next to nothing of a
peaked one. Adds to one integer a row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.mode_values import lowest_visible
from tokendraw_triton_gumbel.kernels.shared.row_params import NORMALISED
from tokendraw_triton_gumbel.kernels.shared.temperature import mode_temperature
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
_MAXIMA_AT_ONCE = tl.constexpr(256)
_TINY, _HUGE = tl.constexpr(1e-30), tl.constexpr(1e30)
"""Float32 may not hold the value of a drawn token below this temperature, or of a logit below the negative."""


@triton.jit
def _largest_of(maxima, tiles):
    """Return the largest of the maxima [tiles] in memory."""
    largest = tl.full((), float("-inf"), tl.float32)
    start = tl.zeros((), tl.int32)
    while start < tiles:
        tile = start + tl.arange(0, _MAXIMA_AT_ONCE)
        maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(maximum, 0))
        start += _MAXIMA_AT_ONCE
    return largest


@triton.jit(
    do_not_specialize=["tiles", "rows", "flags"],
    # Scalar reads and writes.
    do_not_specialize_on_alignment=["requested", "token_ids", "maxima", "ceiling", "ranks"],
)
def count_ranks(
    logits,
    tiles,
    rows,
    requested,
    token_ids,
    maxima,
    granules,
    ceiling,
    ranks,
    flags,
    SPAN: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Each program counts in ``SPAN`` neighbouring tiles of a row. Grid (rows * groups of tiles).

    :param logits: :class:`~.argument_groups.Logits`.
    :param requested: :class:`.row_logprobs.RequestedLogprobs`.
    :param token_ids: [rows] int64; an id outside [0, V) leaves its rank 0.
    :param maxima: [rows, tiles], as :class:`~.argument_groups.TileStatistics` has them, and ``granules`` [rows,
        tiles, 16].
    :param ceiling: [rows] float32: the greatest logit that is shown; None: all are.
    :param ranks: [rows] int64, 0 at first; V where the token's value is -inf.
    :param flags: what the mode shows of logits: see :mod:`~..shared.row_params`.
    """
    groups = (tiles + SPAN - 1) // SPAN
    # The last rows first: launch 1 read them last, so a part of them is still in the cache.
    row = (rows - 1 - tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    base = logits.base + row * logits.row_stride
    tile = group * SPAN + tl.arange(0, SPAN)
    maximum = tl.load(maxima + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    token = tl.load(token_ids + row)
    is_token = (token >= 0) & (token < logits.vocab_size)
    x = tl.load(base + token, mask=is_token, other=float("-inf")).to(tl.float32)
    slot = row
    if requested.row_index is not None:
        slot = tl.load(requested.row_index + row).to(tl.int64)
    temperature, _, greedy = mode_temperature(requested.temperature, slot, flags)
    if (temperature < _TINY).to(tl.int32) + (x < -_HUGE).to(tl.int32) > 0:
        peak = _largest_of(maxima + row * tiles, tiles)
        if ceiling is not None:
            is_lower = (tl.load(ceiling + row) < peak) & ((flags & NORMALISED) != 0)
            peak = tl.where(is_lower, tl.load(ceiling + row), peak)
        x = tl.where(x < lowest_visible(peak, temperature, flags), float("-inf"), x)
    if (x > float("-inf")) & (greedy == 0):
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
            logit = logit.to(tl.float32)
            is_counted = logit >= x
            if ceiling is not None:
                is_counted &= logit <= tl.load(ceiling + row)
            number = lane_sums(is_counted.to(tl.int32))
            tl.atomic_add(ranks + row, tl.sum(tl.sum(number, 1), 0).to(tl.int64), sem="relaxed")
    elif group == 0:
        # A greedy row shows its token alone.
        rank = tl.where(x > float("-inf"), 1, logits.vocab_size).to(tl.int64)
        tl.store(ranks + row, rank, mask=is_token)
