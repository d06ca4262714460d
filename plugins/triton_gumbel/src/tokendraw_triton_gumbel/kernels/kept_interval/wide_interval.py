"""The kept interval of a row with many tokens: weighs its tiles, and draws from these weights.

Reads the granules that reach the lower end, once for each weighing, and one tile for the draw.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.noise import gumbel, streams_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import (
    GRANULE_LANES,
    GRANULES_PER_HALF,
    GRANULES_PER_TILE,
    LANES,
    TILE_SIZE,
)
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, scaled, weigh


@triton.jit(noinline=True)
def _weigh_interval(
    source,
    granules,
    sums,
    first,
    end,
    low,
    high,
    origin,
    scale,
    VECTOR: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
):
    """Write what each tile from ``first`` to before ``end`` weighs in an interval.

    :param source: the :class:`.RowAddress`; ``granules`` [tiles, 16] of the row in memory, ``sums`` [tiles] float32.
    :param low: tokens from here upwards count, up to ``high``.
    :param origin: a logit x weighs ``exp((x - origin) / T)``; ``scale`` is ``log2(e) / T``, see :func:`.weigh`.
    """
    VECTORS: tl.constexpr = TILE_SIZE // VECTOR
    vector = tl.arange(0, VECTORS)[None, :, None]
    granule = vector // (VECTORS // 2) * GRANULES_PER_HALF + vector % LANES // GRANULE_LANES
    start = first
    while start < end:
        tile = start + tl.arange(0, TILES_AT_ONCE)
        place = tile[:, None, None]
        maximum = tl.load(
            granules + place * GRANULES_PER_TILE + granule, mask=place < end, other=float("-inf")
        ).to(tl.float32)
        ids = place * TILE_SIZE + vector * VECTOR + tl.arange(0, VECTOR)[None, None, :]
        x = tl.load(source.base + ids, mask=(maximum >= low) & (ids < source.vocab_size), other=float("-inf"))
        x = x.to(tl.float32)
        x = tl.where((x >= low) & (x <= high), x, float("-inf"))
        tl.store(sums + tile, tl.sum(tl.sum(weigh(x, origin, scale), 2), 1), mask=tile < end)
        start += TILES_AT_ONCE
    tl.debug_barrier()  # the sums are read by other threads


@triton.jit
def is_likely(x, max_logit, scale, mass, limit):
    """Return whether each logit has at least the probability ``limit``, float64, and more than 0.

    :param mass: of the kept tokens, relative to ``max_logit``; ``scale`` is ``log2(e) / T``, see :func:`.weigh`.
    """
    probability = weigh(x, max_logit, scale).to(tl.float64) / mass.to(tl.float64)
    return (probability >= limit) & (probability > 0)


@triton.jit(noinline=True)
def _least_likely(source, maxima, tiles, threshold, max_logit, scale, mass, limit, TILES: tl.constexpr):
    """Return (number of kept tokens with at least the probability ``limit``; the least logit of these, or +inf).

    Reads the tiles with such tokens, one at a time: at most ``1 / limit``.

    :param mass: of the kept tokens, relative to ``max_logit``.
    :param limit: float64.
    """
    tile = tl.arange(0, TILES)
    maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
    is_listed = is_likely(maximum, max_logit, scale, mass, limit) & (maximum >= threshold)
    count = tl.full((), 0, tl.int32)
    least = tl.full((), float("inf"), tl.float32)
    current = tl.min(tl.where(is_listed, tile, TILES), 0)
    while current < TILES:
        ids = current * TILE_SIZE + tl.arange(0, TILE_SIZE)
        x = tl.load(source.base + ids, mask=ids < source.vocab_size, other=float("-inf")).to(tl.float32)
        x = tl.where(x == x, x, float("-inf"))
        likely = is_likely(x, max_logit, scale, mass, limit) & (x >= threshold)
        count += tl.sum(likely.to(tl.int32), 0)
        least = tl.minimum(least, tl.min(tl.where(likely, x, float("inf")), 0))
        current = tl.min(tl.where(is_listed & (tile > current), tile, TILES), 0)
    return count, least


@triton.jit
def _draw_from_sums(source, sums, tiles, threshold, peak, inverse, key, flags, config: tl.constexpr):
    """Draw a token of ``[threshold, peak]``: a tile by its weight, then a token in the tile.

    Returns (token; what all tiles weigh).

    :param sums: [tiles] in memory, relative to ``peak``.
    """
    tile = tl.arange(0, config.TILES)
    weight = tl.load(sums + tile, mask=tile < tiles, other=0.0)
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, config.FP64)
    score = tl.where(
        weight > 0, tl.log(tl.where(weight > 0, weight, 1.0).to(noise.dtype)) + noise, float("-inf")
    )
    chosen = tl.argmax(score, 0)
    ids = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
    x = tl.load(source.base + ids, mask=ids < source.vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where((x >= threshold) & (x <= peak), x, float("-inf"))
    score = scaled(x, peak, inverse, config.FP64) + gumbel(key, ids, of_token, config.FP64)
    return chosen * TILE_SIZE + tl.argmax(score, 0), tl.sum(weight, 0)


@triton.jit
def _part_of(tiles, TILES_AT_ONCE: tl.constexpr):
    """Return the tiles of this program's part of a row: (the first; the one behind the last)."""
    groups = (tiles + TILES_AT_ONCE - 1) // TILES_AT_ONCE
    span = (groups + tl.num_programs(1) - 1) // tl.num_programs(1) * TILES_AT_ONCE
    first = tl.program_id(1) * span
    return tl.minimum(first, tiles), tl.minimum(first + span, tiles)


@triton.jit(noinline=True)
def draw_tiles(
    source,
    statistics,
    sums,
    arrivals,
    tiles,
    threshold,
    is_raised,
    mass,
    max_logit,
    filter_scale,
    inverse,
    chain,
    key,
    flags,
    config: tl.constexpr,
):
    """Draw a row from its tiles, of which each program of the row weighs a part.

    Returns (token, or -1 where the earlier draw holds; the greatest kept logit; the kept mass, relative to that one;
    1 in the program that has to write the results, else 0).

    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the row; ``sums`` [tiles] of scratch.
    :param arrivals: counts the programs of the row that are done.
    :param mass: of the kept tokens at the temperature of the filters.
    :param is_raised: 1 if the threshold was raised since, so that ``mass`` counts some dropped tokens too.
    """
    TILES: tl.constexpr = config.TILES
    token = tl.full((), -1, tl.int32)
    peak = max_logit
    kept_mass = mass
    # Where the mass is not known, one program does all: few rows have this combination of filters.
    is_shared = 1 - is_raised * chain.applies
    is_finisher = (tl.program_id(1) == 0).to(tl.int32)
    if is_shared + is_finisher > 0:
        first, end = _part_of(tiles, config.TILES_AT_ONCE)
        if is_shared == 0:
            end = tiles
            _weigh_interval(
                source,
                statistics.granules,
                sums,
                first,
                end,
                threshold,
                max_logit,
                max_logit,
                filter_scale,
                config.VECTOR,
                config.TILES_AT_ONCE,
            )
            tile = tl.arange(0, TILES)
            kept_mass = tl.sum(tl.load(sums + tile, mask=tile < tiles, other=0.0), 0)
            tl.debug_barrier()  # the sums were read
        if chain.applies > 0:
            count, least = _least_likely(
                source,
                statistics.maxima,
                tiles,
                threshold,
                max_logit,
                filter_scale,
                kept_mass,
                chain.limit,
                TILES,
            )
            peak = tl.where(count > 1, least, max_logit)
        if chain.is_last + (peak < max_logit).to(tl.int32) > 0:
            _weigh_interval(
                source,
                statistics.granules,
                sums,
                first,
                end,
                threshold,
                peak,
                peak,
                inverse * LOG2_E,
                config.VECTOR,
                config.TILES_AT_ONCE,
            )
            if is_shared > 0:
                earlier = tl.atomic_add(arrivals, 1, sem="acq_rel")
                is_finisher = (earlier == tl.num_programs(1) - 1).to(tl.int32)
            if is_finisher > 0:
                token, kept_mass = _draw_from_sums(
                    source, sums, tiles, threshold, peak, inverse, key, flags, config
                )
    return token, peak, kept_mass, is_finisher
