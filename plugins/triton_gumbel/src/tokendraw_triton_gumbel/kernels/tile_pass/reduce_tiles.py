"""Reduces a group of tiles of one row to the statistics that the draw, log-probabilities and moments read."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import halves
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import (
    GRANULES_PER_HALF,
    GRANULES_PER_TILE,
    LANES,
    TILE_SIZE,
    element_ids,
    tile_sums,
)
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E
from tokendraw_triton_gumbel.kernels.tile_pass.shifted_tiles import (
    PAIRS_PER_CHUNK,
    PAIRS_PER_LANE,
    PAIRS_PER_TILE,
    load_shifted,
    load_shifted_pairs,
)
from tokendraw_triton_gumbel.kernels.tile_pass.tile_sums import (
    granule_maxima,
    half_granule_maxima,
    lane_maxima,
    larger_pairs,
    sum_carefully,
    sum_distances_carefully,
    sum_logits,
    sum_pairs,
)


@triton.jit
def _scale_of(temperature, row_index, row):
    """Return ``log2(e) / T``."""
    slot = row
    if row_index is not None:
        slot = tl.load(row_index + row)
    inverse, _ = inverse_temperature(temperature, slot)
    return inverse * LOG2_E


@triton.jit
def _wanted_entropy(entropy, raw_entropy, raw_temperature, raw_scale, config: tl.constexpr):
    """Return the one of two entropies that the call wants; the second, unless rows have two temperatures.

    One of the two temperatures of a row is 1, and either may stand first.
    """
    if raw_temperature is not None:
        if config.IS_RAW:
            raw_entropy = tl.where(raw_scale == LOG2_E, raw_entropy, entropy)
        else:
            raw_entropy = tl.where(raw_scale == LOG2_E, entropy, raw_entropy)
    return raw_entropy


@triton.jit
def _lane_maxima_of_pairs(pairs, SPAN: tl.constexpr):
    """Reduce pairs [LANES, SPAN, pairs of a vector] to the maxima of lanes, [LANES, SPAN]."""
    first, second = tl.split(tl.reshape(pairs, (LANES, SPAN, 2, 2)))
    first, second = tl.split(larger_pairs(first, second))
    low, high = halves(larger_pairs(first, second))
    return tl.maximum(low, high)


@triton.jit
def _maxima_of_tiles(block, statistics, out, inside):
    """Return the maxima of tiles [SPAN] of [LANES, SPAN, chunks, VECTOR]; write those of their granules, if wanted.

    :param out: [SPAN] numbers of the tiles in all rows, written where ``inside``.
    """
    if statistics.granules is None:
        max_logit = tl.max(lane_maxima(block), 0)
    else:
        granule_top = granule_maxima(block)
        offset = tl.arange(0, GRANULES_PER_HALF)[:, None, None]
        offset += tl.arange(0, 2)[None, None, :] * GRANULES_PER_HALF + out[None, :, None] * GRANULES_PER_TILE
        granules = statistics.granules + offset
        tl.store(granules, granule_top.to(granules.dtype.element_ty), mask=inside[None, :, None])
        max_logit = tl.max(tl.max(granule_top, 2), 0)
    return max_logit


@triton.jit
def _logit_to_rank(source, ranked, row):
    """Return a row's logit to count from, with -inf for NaN, and whether it has one; +inf without."""
    token = tl.load(ranked.token_ids + row)
    is_token = (token >= 0) & (token < source.vocab_size)
    x = tl.load(source.base + token, mask=is_token, other=float("inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf")), is_token


@triton.jit
def _reached_by_pair(pairs, x):
    low, high = halves(pairs)
    return (low >= x).to(tl.int32) + (high >= x).to(tl.int32)


@triton.jit
def reduce_tiles(
    source,
    temperature,
    raw_temperature,
    row_index,
    target_row,
    group,
    row,
    counts,
    statistics,
    moments,
    ranked,
    config: tl.constexpr,
):
    """Reduce a group of tiles of one row.

    :param source: the :class:`.RowAddress`; ``row`` its number, ``target_row`` the row with its temperature.
    :param moments: :class:`~.argument_groups.MomentSums`.
    :param raw_temperature: the temperatures of ``raw_sums``; None: 1.
    :param ranked: :class:`~.argument_groups.RankedTokens`.
    """
    SPAN: tl.constexpr = config.SPAN
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    HAS_ENTROPY: tl.constexpr = statistics.entropy_sums is not None
    HAS_MOMENT_ENTROPY: tl.constexpr = moments.entropies is not None
    HAS_BOTH: tl.constexpr = HAS_ENTROPY or HAS_MOMENT_ENTROPY
    HAS_COLLISION: tl.constexpr = moments.collisions is not None
    HAS_DISTANCES: tl.constexpr = moments.counts is not None
    IS_PAIRED: tl.constexpr = config.IS_NVIDIA and source.base.dtype.element_ty == tl.bfloat16
    ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, config.VECTOR)
    is_full = (group + 1) * (SPAN * TILE_SIZE) <= source.vocab_size
    is_inner = is_full & ((group + 1) * (SPAN * TILE_SIZE) + config.VECTOR <= source.vocab_size)
    tile = group * SPAN + tl.arange(0, SPAN)
    out = row.to(tl.int64) * counts.tiles + tile
    inside = tile < counts.tiles
    HAS_RANKS: tl.constexpr = ranked.ranks is not None
    if HAS_RANKS:
        ranked_logit, is_token = _logit_to_rank(source, ranked, row)
        number = tl.zeros((), tl.int32)
    if IS_PAIRED:
        if is_full:
            if config.IS_ALIGNED:
                offset = tl.arange(0, LANES)[:, None, None] * PAIRS_PER_LANE
                offset += tl.arange(0, SPAN)[None, :, None] * PAIRS_PER_TILE
                offset += group * (SPAN * PAIRS_PER_TILE) + tl.arange(0, PAIRS_PER_LANE)[None, None, :]
                pointers = source.base.to(tl.pointer_type(tl.int32)) + offset
                a, b = tl.load(pointers), tl.load(pointers + PAIRS_PER_CHUNK)
                c, d = tl.load(pointers + 2 * PAIRS_PER_CHUNK), tl.load(pointers + 3 * PAIRS_PER_CHUNK)
            else:
                a, b, c, d = load_shifted_pairs(source, group, is_inner, SPAN)
            scale = _scale_of(temperature, row_index, target_row)
            raw_scale = (
                LOG2_E if raw_temperature is None else _scale_of(raw_temperature, row_index, target_row)
            )
            first_half, second_half = larger_pairs(a, b), larger_pairs(c, d)
            if statistics.granules is None:
                max_logit = tl.max(_lane_maxima_of_pairs(larger_pairs(first_half, second_half), SPAN), 0)
            else:
                first_top = half_granule_maxima(_lane_maxima_of_pairs(first_half, SPAN), SPAN)
                last_top = half_granule_maxima(_lane_maxima_of_pairs(second_half, SPAN), SPAN)
                max_logit = tl.max(tl.maximum(first_top, last_top), 0)
                granules = statistics.granules + out[None, :] * GRANULES_PER_TILE
                granules += tl.arange(0, GRANULES_PER_HALF)[:, None]
                tl.store(granules, first_top.to(granules.dtype.element_ty), mask=inside[None, :])
                tl.store(
                    granules + GRANULES_PER_HALF,
                    last_top.to(granules.dtype.element_ty),
                    mask=inside[None, :],
                )
            total, entropy, collision, distance, square, is_exact = sum_pairs(
                a, b, c, d, max_logit, scale, HAS_BOTH, HAS_COLLISION, HAS_DISTANCES, IS_NVIDIA
            )
            moment_entropy = entropy
            if statistics.raw_sums is not None:
                raw = total
                if scale != raw_scale:
                    raw, raw_entropy, _, _, _, raw_fine = sum_pairs(
                        a, b, c, d, max_logit, raw_scale, HAS_ENTROPY, False, False, IS_NVIDIA
                    )
                    is_exact &= raw_fine
                    entropy = _wanted_entropy(entropy, raw_entropy, raw_temperature, raw_scale, config)
            if HAS_RANKS:
                if tl.max(max_logit, 0) >= ranked_logit:
                    reached = _reached_by_pair(a, ranked_logit) + _reached_by_pair(b, ranked_logit)
                    reached += _reached_by_pair(c, ranked_logit) + _reached_by_pair(d, ranked_logit)
                    number = tl.sum(tl.sum(tl.sum(reached, 2), 1), 0)
        else:
            scale = _scale_of(temperature, row_index, target_row)
            raw_scale = (
                LOG2_E if raw_temperature is None else _scale_of(raw_temperature, row_index, target_row)
            )
            max_logit = tl.zeros((SPAN,), tl.float32)
            total = tl.zeros((SPAN,), tl.float32)
            raw = total
            entropy = total
            moment_entropy = total
            collision = total
            distance = total
            square = total
            is_exact = total > 0
    else:
        if config.IS_ALIGNED:
            if is_full:
                x = tl.load(source.base + ids).to(tl.float32)
            else:
                x = tl.load(source.base + ids, mask=ids < source.vocab_size, other=float("-inf"))
                x = x.to(tl.float32)
        else:
            x = load_shifted(source, group, is_inner, config)
        scale = _scale_of(temperature, row_index, target_row)
        raw_scale = LOG2_E if raw_temperature is None else _scale_of(raw_temperature, row_index, target_row)
        max_logit = _maxima_of_tiles(x, statistics, out, inside)
        total, entropy, collision, distance, square, is_exact = sum_logits(
            x, max_logit, scale, HAS_BOTH, HAS_COLLISION, HAS_DISTANCES, IS_NVIDIA
        )
        moment_entropy = entropy
        if statistics.raw_sums is not None:
            raw = total
            if scale != raw_scale:
                raw, raw_entropy, _, _, _, raw_fine = sum_logits(
                    x, max_logit, raw_scale, HAS_ENTROPY, False, False, IS_NVIDIA
                )
                is_exact &= raw_fine
                entropy = _wanted_entropy(entropy, raw_entropy, raw_temperature, raw_scale, config)
        if HAS_RANKS:
            if tl.max(max_logit, 0) >= ranked_logit:
                number = tl.sum(tile_sums((x >= ranked_logit).to(tl.int32)), 0)

    count = tl.full((SPAN,), TILE_SIZE, tl.float32)
    # Sums with NaN, infinities or overflow are computed again here; the common path does not check for these.
    if tl.min(is_exact.to(tl.int32), 0) == 0:
        if config.IS_ALIGNED:
            x = tl.load(source.base + ids, mask=ids < source.vocab_size, other=float("-inf"))
            x = x.to(tl.float32)
        else:
            x = load_shifted(source, group, False, config)
        clean = tl.where(x != x, float("-inf"), x)
        max_logit = _maxima_of_tiles(clean, statistics, out, inside)
        has_nan = tile_sums((x != x).to(tl.int32)) > 0
        total, entropy, collision = sum_carefully(clean, max_logit, scale, HAS_BOTH, HAS_COLLISION)
        moment_entropy = entropy
        # In Triton -total is 0 - total, which has no sign where total is 0.
        total = tl.where(has_nan, -1.0 * total, total)
        if statistics.raw_sums is not None:
            raw, raw_entropy, _ = sum_carefully(clean, max_logit, raw_scale, HAS_ENTROPY, False)
            entropy = _wanted_entropy(entropy, raw_entropy, raw_temperature, raw_scale, config)
        if HAS_DISTANCES:
            count, distance, square = sum_distances_carefully(clean, max_logit)
        if HAS_RANKS:
            number = tl.sum(tile_sums((clean >= ranked_logit).to(tl.int32)), 0)
    tl.store(statistics.maxima + out, max_logit, mask=inside)
    tl.store(statistics.sums + out, total, mask=inside)
    if statistics.raw_sums is not None:
        tl.store(statistics.raw_sums + out, raw, mask=inside)
    if HAS_ENTROPY:
        tl.store(statistics.entropy_sums + out, entropy, mask=inside)
    if HAS_DISTANCES:
        tl.store(moments.counts + out, count, mask=inside)
        tl.store(moments.distances + out, distance, mask=inside)
        tl.store(moments.squares + out, square, mask=inside)
    if HAS_MOMENT_ENTROPY:
        tl.store(moments.entropies + out, moment_entropy, mask=inside)
    if HAS_COLLISION:
        tl.store(moments.collisions + out, collision, mask=inside)
    if HAS_RANKS:
        if ranked_logit == float("-inf"):
            number = tl.where(group == 0, source.vocab_size, 0)
        if number > 0:
            tl.atomic_add(ranked.ranks + row, number.to(tl.int64), mask=is_token, sem="relaxed")
