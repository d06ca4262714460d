"""The pass over all logits of each row, and the moments and floors that follow from its sums."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.filters import RowMoments, filter_floors
from tokendraw.plugin import MOMENTS, Moment
from tokendraw_triton_gumbel.compilation import ANY_INT, FLOAT32, Pointer
from tokendraw_triton_gumbel.kernels.large_set_passes import QUEUE_COUNTERS, ROUNDS
from tokendraw_triton_gumbel.kernels.rows import (
    TEMPERED,
    DraftRows,
    RowParams,
    TileStatistics,
    inverse_temperature,
    mode_temperature,
    row_logits,
    row_of,
)
from tokendraw_triton_gumbel.kernels.values import (
    COARSEST_OFFSET,
    GRANULE_LANES,
    GRANULES_PER_HALF,
    GRANULES_PER_TILE,
    LANES,
    LOG2_E,
    TILE_SIZE,
    WORDS,
    aligned_base,
    element_ids,
    exp2,
    halves,
    load_inside,
    load_logits,
    shifted_words,
    tile_sums,
    times,
    word_ids,
)
from tokendraw_triton_gumbel.launch import Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import Grid, Scratch, Target, Variant


class MomentSums(NamedTuple):
    """Sums of every tile from which the moments of rows are computed; each None where no moment needs it."""

    counts: Any = None
    """[rows, tiles] float32: number of finite logits."""
    distances: Any = None
    """[rows, tiles] float64: the sum of ``x - maximum`` over the finite logits."""
    squares: Any = None
    """[rows, tiles] float64: the sum of their squares."""
    entropies: Any = None
    """[rows, tiles] float32: the sum of ``w log2 w`` of the weights w that ``sums`` adds up."""
    collisions: Any = None
    """[rows, tiles] float32: the sum of the squares of these weights."""


class MomentResults(NamedTuple):
    """Moments of y of each row, [rows] float32 as in ``tokendraw.filters.RowMoments``; each None if not wanted."""

    number: Any = None
    mean: Any = None
    std: Any = None
    log_mass: Any = None
    entropy: Any = None
    collision: Any = None
    target_rows: Any = None
    """[rows] int64: the row of the target with the parameters of each row; None without rows of drafts."""


class RankedTokens(NamedTuple):
    """Tokens that are known before the pass over the logits, which counts their ranks; both None elsewhere."""

    token_ids: Any = None
    """[rows] int64; an id outside [0, V) is padding."""
    ranks: Any = None
    """[rows] int64, 0 at first: increased by the number of logits that are at least the token's; V if that is -inf."""


class TileConfig(NamedTuple):
    """Constants of launch 1, the pass over the logits."""

    SPAN: int
    """Tiles a program."""
    VECTOR: int
    """Neighbouring logits a lane, 16 bytes."""
    IS_ALIGNED: bool
    """Whether every row begins at a multiple of 16 bytes."""
    IS_NVIDIA: bool
    """Whether PTX may be used; elsewhere nothing but Triton is."""
    IS_RAW: bool = False
    """Which entropies are wanted where every row has two temperatures: those at T = 1, or those at the other one."""


# Computes maxima and sums of tiles in registers: logits one by one, or bfloat16 in pairs. Reads and writes nothing.

_MIN_SUM = tl.constexpr(0.5)
"""A tile's sum includes the weight 1 of its maximum, so a lower sum comes from NaN or an overflow."""
_LEAST_EXPONENT = tl.constexpr(-1000.0)
"""Weights are 0 far above it, also that of -inf, whose product with its weight would be NaN."""
_LEAST_SQUARE = tl.constexpr(8.271806125530277e-25)
"""2 ** -80."""
_LEAST_SCALE = tl.constexpr(1e-12)
"""Squares of exponents might vanish below."""


@triton.jit
def lane_maxima(block):
    """Reduce [LANES, SPAN, chunks, VECTOR] to [LANES, SPAN]."""
    return tl.max(tl.max(block, 3), 2)


@triton.jit
def granule_maxima(block):
    """Reduce [LANES, SPAN, chunks, VECTOR] to maxima of granules: [granules of half a tile, SPAN, halves]."""
    halves_of_tile = tl.reshape(
        block, (block.shape[0], block.shape[1], 2, block.shape[2] // 2, block.shape[3])
    )
    lanes = tl.max(tl.max(halves_of_tile, 4), 3)
    return tl.max(tl.reshape(lanes, (GRANULES_PER_HALF, GRANULE_LANES, block.shape[1], 2)), 1)


@triton.jit
def half_granule_maxima(lanes, SPAN: tl.constexpr):
    """Reduce the maxima of lanes over half a tile, [LANES, SPAN], to those of its granules, [8, SPAN]."""
    return tl.max(tl.reshape(lanes, (GRANULES_PER_HALF, GRANULE_LANES, SPAN)), 1)


@triton.jit
def larger_pairs(a, b):
    """Return the larger of each two bfloat16 in int32. NVIDIA."""
    return tl.inline_asm_elementwise(
        "max.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _offset_of(max_logit, scale):
    """Return (-max_logit * scale in float32; its rounding error; whether the rounded product is accurate enough)."""
    offset = -(max_logit * scale)
    return offset, tl.fma(max_logit, scale, offset), (tl.abs(offset) < COARSEST_OFFSET) & (scale > 0)


@triton.jit
def _entropies(weight, exponent):
    """Return ``w log2 w`` of weights ``w = 2 ** exponent``: 0 where w is 0."""
    return weight * tl.maximum(exponent, _LEAST_EXPONENT)


@triton.jit
def _distance_sums(exponents, squares, rounding, scale):
    """Return the sums of ``x - max_logit`` and of the squares, from those of the exponents of all weights of a tile."""
    exact = exponents - rounding * TILE_SIZE
    inverse = 1.0 / scale
    distance = exact * inverse
    # Where all logits are equal, fused multiply-adds leave a remainder of either sign in place of 0.
    square = tl.where(distance == 0, 0.0, squares - rounding * (exponents + exact))
    return distance, square * inverse * inverse


class Wanted(NamedTuple):
    """Which sums of a tile are wanted beside that of its weights w: constants of a compilation."""

    entropy: Any
    """Of ``w log2 w``."""
    collision: Any
    """Of ``w * w``."""
    distances: Any
    """Of ``x - max_logit`` and of the squares."""


@triton.jit
def _sum_pair(pairs, scale, offset, wanted, IS_NVIDIA: tl.constexpr):
    low, high = halves(pairs)
    low, high = tl.fma(low, scale, offset), tl.fma(high, scale, offset)
    low_weight, high_weight = exp2(low, IS_NVIDIA), exp2(high, IS_NVIDIA)
    weight = low_weight + high_weight
    entropy = _entropies(low_weight, low) + _entropies(high_weight, high) if wanted.entropy else weight
    collision = low_weight * low_weight + high_weight * high_weight if wanted.collision else weight
    square = low * low + high * high if wanted.distances else weight
    return weight, entropy, collision, low + high if wanted.distances else weight, square


@triton.jit
def _are_exact(is_exact, distance, square, scale):
    """Return whether sums are exact if also those of distances and of their squares neither overflow nor vanish."""
    is_exact &= tl.where(scale > _LEAST_SCALE, square, float("inf")) < float("inf")
    return is_exact & ((square > _LEAST_SQUARE) | (distance == 0))


@triton.jit
def sum_pairs(a, b, c, d, max_logit, scale, wanted, IS_NVIDIA: tl.constexpr):
    """Sum the weights of four blocks of pairs; returns the same results as :func:`sum_logits`."""
    offset, rounding, is_exact = _offset_of(max_logit, scale)
    wide = offset[None, :, None]
    a_weight, a_entropy, a_collision, a_sum, a_square = _sum_pair(a, scale, wide, wanted, IS_NVIDIA)
    b_weight, b_entropy, b_collision, b_sum, b_square = _sum_pair(b, scale, wide, wanted, IS_NVIDIA)
    c_weight, c_entropy, c_collision, c_sum, c_square = _sum_pair(c, scale, wide, wanted, IS_NVIDIA)
    d_weight, d_entropy, d_collision, d_sum, d_square = _sum_pair(d, scale, wide, wanted, IS_NVIDIA)
    total = a_weight + b_weight
    total += c_weight
    total += d_weight
    total = _sum_lanes(total)
    entropy, collision, distance, square = total, total, total, total
    factor = exp2(-rounding, IS_NVIDIA)
    if wanted.entropy:
        entropy = _sum_lanes((a_entropy + b_entropy) + (c_entropy + d_entropy))
        entropy = (entropy - rounding * total) * factor
    if wanted.collision:
        collision = _sum_lanes((a_collision + b_collision) + (c_collision + d_collision)) * (factor * factor)
    if wanted.distances:
        distance = _sum_lanes((a_sum + b_sum) + (c_sum + d_sum))
        square = _sum_lanes((a_square + b_square) + (c_square + d_square))
        distance, square = _distance_sums(distance, square, rounding, scale)
        is_exact = _are_exact(is_exact, distance, square, scale)
    total *= factor
    return total, entropy, collision, distance, square, is_exact & (total >= _MIN_SUM)


@triton.jit
def _sum_lanes(block):
    """Sum blocks of pairs [LANES, SPAN, pairs of a vector] by tile."""
    return tl.sum(tl.sum(block, 2), 0)


@triton.jit
def sum_logits(x, max_logit, scale, wanted, IS_NVIDIA: tl.constexpr):
    """Sum weights ``w = exp2((x - max_logit) * scale)`` by tile.

    Returns (the sums; the four that may be :class:`Wanted`; whether all are exact: no NaN, infinity or overflow
    occurred).
    """
    if IS_NVIDIA:
        offset, rounding, is_exact = _offset_of(max_logit, scale)
        exponent = tl.fma(x, scale, offset[None, :, None, None])
        weight = exp2(exponent, IS_NVIDIA)
        factor = exp2(-rounding, IS_NVIDIA)
        total = tile_sums(weight)
        entropy = total
        if wanted.entropy:
            entropy = (tile_sums(_entropies(weight, exponent)) - rounding * total) * factor
        collision = tile_sums(weight * weight) * (factor * factor) if wanted.collision else total
        total *= factor
        is_exact &= total >= _MIN_SUM
    else:
        exponent = times(x - max_logit[None, :, None, None], scale)
        weight = tl.exp2(exponent)
        total = tile_sums(weight)
        entropy = tile_sums(_entropies(weight, exponent)) if wanted.entropy else total
        rounding = tl.zeros_like(total)
        collision = tile_sums(weight * weight) if wanted.collision else total
        is_exact = total >= _MIN_SUM
    distance, square = total, total
    if wanted.distances:
        distance, square = tile_sums(exponent), tile_sums(exponent * exponent)
        distance, square = _distance_sums(distance, square, rounding, scale)
        is_exact = _are_exact(is_exact, distance, square, scale)
    return total, entropy, collision, distance, square, is_exact


@triton.jit
def sum_carefully(clean, max_logit, scale, wanted):
    """Return the sums of :func:`sum_logits`, whatever the tile holds; +inf weighs 1."""
    wide = max_logit[None, :, None, None]
    finite = (tl.abs(wide) < float("inf")) & (clean > float("-inf"))
    exponent = times(tl.where(finite, clean, 0.0) - tl.where(finite, wide, 0.0), scale)
    weight = tl.exp2(exponent)
    entropy = tile_sums(tl.where(finite, _entropies(weight, exponent), 0.0)) if wanted.entropy else max_logit
    weight = tl.where(finite, weight, tl.where(clean == float("inf"), 1.0, 0.0))
    return tile_sums(weight), entropy, tile_sums(weight * weight) if wanted.collision else max_logit


@triton.jit
def sum_distances_carefully(clean, max_logit):
    """Return (numbers of finite logits, sums of ``x - max_logit``, sums of the squares), whatever the tile holds.

    The sums are float64, in which no square of a float32 overflows or vanishes.
    """
    top = tl.where(tl.abs(max_logit) < float("inf"), max_logit, 0.0)[None, :, None, None].to(tl.float64)
    is_finite = tl.abs(clean) < float("inf")
    distance = tl.where(is_finite, clean.to(tl.float64) - top, 0.0)
    return tile_sums(is_finite.to(tl.float32)), tile_sums(distance), tile_sums(distance * distance)


# Loads the tiles of rows that begin at any address. Reads a vector beside each, for the words between two.

PAIRS_PER_TILE = tl.constexpr(512)
PAIRS_PER_LANE = tl.constexpr(4)
"""Pairs in 16 bytes: one of a lane's four vectors of a tile."""
PAIRS_PER_CHUNK = tl.constexpr(128)


@triton.jit
def load_shifted(source, group, is_inner, config: tl.constexpr):
    """Load the tiles of a group of a row at any address: float32 [LANES, SPAN, chunks, VECTOR], -inf outside."""
    SPAN: tl.constexpr = config.SPAN
    words = group * (SPAN * TILE_SIZE // config.VECTOR * WORDS) + word_ids(SPAN, config.VECTOR)
    return load_logits(source, words, is_inner, config.IS_NVIDIA)


@triton.jit
def load_shifted_pairs(source, group, is_inner, SPAN: tl.constexpr):
    """Load the four vectors of each lane's tiles in a full group, of a row of bfloat16 at any address."""
    offset = tl.arange(0, LANES)[:, None, None, None] * WORDS + tl.arange(0, WORDS)[None, None, None, :]
    offset += (group * SPAN + tl.arange(0, SPAN)[None, :, None, None]) * PAIRS_PER_TILE
    base, _ = aligned_base(source)
    a0, a1 = tl.load(base + offset), tl.load(base + offset + WORDS)
    offset += PAIRS_PER_CHUNK
    b0, b1 = tl.load(base + offset), tl.load(base + offset + WORDS)
    offset += PAIRS_PER_CHUNK
    c0, c1 = tl.load(base + offset), tl.load(base + offset + WORDS)
    offset += PAIRS_PER_CHUNK
    d0 = tl.load(base + offset)
    if is_inner:
        d1 = tl.load(base + offset + WORDS)
    else:
        d1 = load_inside(source, offset + WORDS)
    return (
        _shifted_pairs(a0, a1, source, SPAN),
        _shifted_pairs(b0, b1, source, SPAN),
        _shifted_pairs(c0, c1, source, SPAN),
        _shifted_pairs(d0, d1, source, SPAN),
    )


@triton.jit
def _shifted_pairs(first, second, source, SPAN: tl.constexpr):
    return tl.reshape(shifted_words(first, second, source, True), (LANES, SPAN, PAIRS_PER_LANE))


# Reduces a group of tiles of one row to the statistics that the draw, log-probabilities and moments read.


@triton.jit
def _scale_of(temperature, row):
    """Return ``log2(e) / T``."""
    slot = row.target
    if row.row_index is not None:
        slot = tl.load(row.row_index + row.target)
    inverse, _ = inverse_temperature(temperature, slot)
    return inverse * LOG2_E


@triton.jit
def _scales_of(row):
    """Return ``log2(e) / T`` of both temperatures of a row."""
    scale = _scale_of(row.temperature, row)
    raw_scale = LOG2_E if row.raw_temperature is None else _scale_of(row.raw_temperature, row)
    return scale, raw_scale


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


class TiledRow(NamedTuple):
    """A row that is reduced, and where its two temperatures stand."""

    source: Any
    """:class:`~.rows.RowAddress`."""
    number: Any
    target: Any
    """The row of the target with its parameters."""
    temperature: Any
    """[slots] in memory, or None; ``raw_temperature`` is that of ``raw_sums``, None for 1."""
    raw_temperature: Any
    row_index: Any


@triton.jit
def reduce_tiles(row, group, counts, statistics, moments, ranked, config: tl.constexpr):
    """Reduce a group of tiles of one row."""
    source, raw_temperature = row.source, row.raw_temperature
    SPAN: tl.constexpr = config.SPAN
    IS_NVIDIA: tl.constexpr = config.IS_NVIDIA
    HAS_ENTROPY: tl.constexpr = statistics.entropy_sums is not None
    HAS_MOMENT_ENTROPY: tl.constexpr = moments.entropies is not None
    HAS_COLLISION: tl.constexpr = moments.collisions is not None
    HAS_DISTANCES: tl.constexpr = moments.counts is not None
    wanted = Wanted(HAS_ENTROPY or HAS_MOMENT_ENTROPY, HAS_COLLISION, HAS_DISTANCES)
    raw_wanted = Wanted(HAS_ENTROPY, False, False)
    IS_PAIRED: tl.constexpr = config.IS_NVIDIA and source.base.dtype.element_ty == tl.bfloat16
    ids = group * (SPAN * TILE_SIZE) + element_ids(SPAN, config.VECTOR)
    is_full = (group + 1) * (SPAN * TILE_SIZE) <= source.vocab_size
    is_inner = is_full & ((group + 1) * (SPAN * TILE_SIZE) + config.VECTOR <= source.vocab_size)
    tile = group * SPAN + tl.arange(0, SPAN)
    out = row.number.to(tl.int64) * counts.tiles + tile
    inside = tile < counts.tiles
    HAS_RANKS: tl.constexpr = ranked.ranks is not None
    if HAS_RANKS:
        ranked_logit, is_token = _logit_to_rank(source, ranked, row.number)
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
            scale, raw_scale = _scales_of(row)
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
                granules += GRANULES_PER_HALF
                tl.store(granules, last_top.to(granules.dtype.element_ty), mask=inside[None, :])
            total, entropy, collision, distance, square, is_exact = sum_pairs(
                a, b, c, d, max_logit, scale, wanted, IS_NVIDIA
            )
            moment_entropy = entropy
            if statistics.raw_sums is not None:
                raw = total
                if scale != raw_scale:
                    raw, raw_entropy, _, _, _, raw_fine = sum_pairs(
                        a, b, c, d, max_logit, raw_scale, raw_wanted, IS_NVIDIA
                    )
                    is_exact &= raw_fine
                    entropy = _wanted_entropy(entropy, raw_entropy, raw_temperature, raw_scale, config)
            if HAS_RANKS:
                if tl.max(max_logit, 0) >= ranked_logit:
                    reached = _reached_by_pair(a, ranked_logit) + _reached_by_pair(b, ranked_logit)
                    reached += _reached_by_pair(c, ranked_logit) + _reached_by_pair(d, ranked_logit)
                    number = tl.sum(tl.sum(tl.sum(reached, 2), 1), 0)
        else:
            scale, raw_scale = _scales_of(row)
            max_logit = tl.zeros((SPAN,), tl.float32)
            total = tl.zeros((SPAN,), tl.float32)
            raw, entropy, moment_entropy, collision, distance, square = (
                total,
                total,
                total,
                total,
                total,
                total,
            )
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
        scale, raw_scale = _scales_of(row)
        max_logit = _maxima_of_tiles(x, statistics, out, inside)
        total, entropy, collision, distance, square, is_exact = sum_logits(
            x, max_logit, scale, wanted, IS_NVIDIA
        )
        moment_entropy = entropy
        if statistics.raw_sums is not None:
            raw = total
            if scale != raw_scale:
                raw, raw_entropy, _, _, _, raw_fine = sum_logits(
                    x, max_logit, raw_scale, raw_wanted, IS_NVIDIA
                )
                is_exact &= raw_fine
                entropy = _wanted_entropy(entropy, raw_entropy, raw_temperature, raw_scale, config)
        if HAS_RANKS:
            if tl.max(max_logit, 0) >= ranked_logit:
                number = tl.sum(tile_sums((x >= ranked_logit).to(tl.int32)), 0)

    if HAS_DISTANCES:
        count = tl.full((SPAN,), TILE_SIZE, tl.float32)
        distance, square = distance.to(tl.float64), square.to(tl.float64)
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
        total, entropy, collision = sum_carefully(clean, max_logit, scale, wanted)
        moment_entropy = entropy
        # In Triton -total is 0 - total, which has no sign where total is 0.
        total = tl.where(has_nan, -1.0 * total, total)
        if statistics.raw_sums is not None:
            raw, raw_entropy, _ = sum_carefully(clean, max_logit, raw_scale, raw_wanted)
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
            tl.atomic_add(ranked.ranks + row.number, number.to(tl.int64), mask=is_token, sem="relaxed")


# Launch 1, the one pass over the logits: for each tile of 1024 ids its maximum and the sum of exp(y) relative to it.
#
# Reads every logit once. Writes 8 bytes a tile, 0.2 % of float32 logits, 0.4 % of half precision; for rows with
# filters also the maxima of the tile's 16 granules, 1.6 % of the logits' bytes; for raw logprobs 4 bytes a tile more,
# for filters from moments 4 to 28.
#
# A warp reads one tile or several, so every reduction stays in registers and shuffles, without shared memory or
# barriers: see :mod:`.values`. Each half of a tile is reduced by itself: two blocks that are joined and reduced
# together go through shared memory, and took 50 us of 256 rows of bfloat16 in place of 29.


@triton.jit(do_not_specialize=["counts"])
def tile_statistics(
    logits,
    drafts,
    counts,
    temperature,
    raw_temperature,
    row_index,
    statistics,
    moments,
    ranked,
    queue,
    counters,
    config: tl.constexpr,
):
    """Each program reduces ``SPAN`` neighbouring tiles of one row. Grid (groups of tiles, rows / z, z).

    :param temperature: [slots] floating point, or None; ``row_index`` [rows] integer, or None.
    :param raw_temperature: [slots] floating point: the temperature of ``raw_sums``; None: 1.
    """
    group = tl.program_id(0)
    index = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    if queue.counters is not None:
        if group + index == 0:
            tl.store(queue.counters + tl.arange(0, QUEUE_COUNTERS), tl.zeros((QUEUE_COUNTERS,), tl.int32))
        if (group == 0) & (index < counts.rows):
            tl.store(queue.announced + index * ROUNDS + tl.arange(0, ROUNDS), 0)
    if counters is not None:
        if (group == 0) & (index < counts.rows):
            tl.store(counters + index, 0)
    row, target_row = row_of(index, drafts, counts)
    if (row >= 0) & (row < counts.rows):
        source = row_logits(row, logits, drafts, counts)
        tiled = TiledRow(source, row, target_row, temperature, raw_temperature, row_index)
        reduce_tiles(tiled, group, counts, statistics, moments, ranked, config)


# The moments of rows from the sums of their tiles, for filters that compute floors from moments.
#
# Reads 8 to 36 bytes a tile, and writes 4 bytes a row for each moment. One program a row.

_LN_2 = tl.constexpr(0.6931471805599453)
_LARGEST_EXPONENT = tl.constexpr(3e38)


@triton.jit(do_not_specialize=["counts"])
def row_moments(drafts, counts, temperature, row_index, statistics, sums, out, TILES: tl.constexpr):
    """Each program computes the moments of a row. Grid (rows).

    In rows with +inf, or with nothing above -inf, the results are unspecified.

    :param temperature: [slots] floating point, or None; ``row_index`` [rows] integer, or None.
    """
    row, target_row = row_of(tl.program_id(0), drafts, counts)
    if drafts.cu_num_logits is not None:
        if row < 0:
            return
    slot = target_row
    if row_index is not None:
        slot = tl.load(row_index + target_row)
    _, inverse, _ = mode_temperature(temperature, slot, TEMPERED)
    tile = tl.arange(0, TILES)
    inside = tile < counts.tiles
    place = row.to(tl.int64) * counts.tiles + tile
    maximum = tl.load(statistics.maxima + place, mask=inside, other=float("-inf"))
    max_logit = tl.max(maximum, 0)
    is_finite = maximum > float("-inf")
    distance = tl.where(is_finite, maximum.to(tl.float64) - max_logit.to(tl.float64), 0.0)
    if sums.counts is not None:
        count, mean, squares = _spread(sums, place, inside, distance)
        number = tl.maximum(count, 1.0)
        if out.number is not None:
            tl.store(out.number + row, number.to(tl.float32))
        if out.mean is not None:
            tl.store(out.mean + row, (mean * inverse).to(tl.float32))
        if out.std is not None:
            tl.store(out.std + row, (tl.sqrt(squares / number) * inverse).to(tl.float32))
    if out.log_mass is not None or sums.entropies is not None or sums.collisions is not None:
        signed_sums = tl.load(statistics.sums + place, mask=inside, other=0.0)
        mass, entropy, collision = _weights(signed_sums, sums, place, inside, is_finite, distance, inverse)
        if out.log_mass is not None:
            tl.store(out.log_mass + row, tl.log(mass))
        if sums.entropies is not None:
            tl.store(out.entropy + row, tl.maximum(tl.log(mass) - _LN_2 * (entropy / mass), 0.0))
        if sums.collisions is not None:
            tl.store(out.collision + row, collision / (mass * mass))
    if out.target_rows is not None:
        tl.store(out.target_rows + row, target_row.to(tl.int64))


@triton.jit
def _spread(sums, place, inside, distance):
    """Return (the number n of finite logits; the mean of their distances from the largest; the squares around it).

    All are float64 scalars.

    :param sums: :class:`MomentSums`, read at ``place`` [TILES] where ``inside``.
    :param distance: [TILES] float64: how far the maximum of each tile lies from the row's, 0 for a tile without one.
    """
    count = tl.load(sums.counts + place, mask=inside, other=0.0).to(tl.float64)
    number = tl.sum(count, 0)
    total = tl.load(sums.distances + place, mask=inside, other=0.0)
    square = tl.load(sums.squares + place, mask=inside, other=0.0)
    own_mean = total / tl.maximum(count, 1.0)
    mean = tl.sum(total + count * distance, 0) / tl.maximum(number, 1.0)
    deviation = distance + own_mean - mean
    # Squares around the tile's own mean, and those of this mean around the row's.
    squares = tl.maximum(square - total * own_mean, 0.0) + count * (deviation * deviation)
    return number, mean, tl.sum(squares, 0)


@triton.jit
def _weights(signed_sums, sums, place, inside, is_finite, distance, inverse):
    """Return the sums over a row of w, ``w log2 w`` and ``w^2``, w relative to the largest logit: float32 scalars.

    The second and third are those of the first where no moment needs them.

    :param signed_sums: [TILES] float32, of :class:`~.rows.TileStatistics`.
    :param is_finite: [TILES]: tiles with a logit above -inf.
    :param inverse: ``1 / T`` in float64.
    """
    exponent = tl.maximum((distance * inverse * LOG2_E).to(tl.float32), -_LARGEST_EXPONENT)
    factor = tl.where(is_finite, tl.exp2(exponent), 0.0)
    weight = factor * tl.abs(signed_sums)
    mass = tl.sum(weight, 0)
    entropy = mass
    if sums.entropies is not None:
        entropies = tl.load(sums.entropies + place, mask=inside, other=0.0)
        entropy = tl.sum(factor * entropies + weight * exponent, 0)
    collision = mass
    if sums.collisions is not None:
        collisions = tl.load(sums.collisions + place, mask=inside, other=0.0)
        collision = tl.sum(factor * factor * collisions, 0)
    return mass, entropy, collision


# The highest floor of each row: raises the floors of a batch to those of one filter. One launch a filter.
#
# Reads and writes 4 bytes a row and tensor.

ROWS_PER_PROGRAM = tl.constexpr(256)


class FilterFloors(NamedTuple):
    """What a filter returned, and what the requests asked for."""

    floors: Any
    """[rows] float32, in units of y."""
    requested: Any
    """[rows] float32, ``stride`` elements from row to row: the filter's value in each row."""
    stride: Any
    off_bits: Any
    """The bits of the float32 value that switches the filter off; NaN does, too."""
    is_first: Any
    """1 for the first filter of a batch, else 0."""


@triton.jit(do_not_specialize=["of_filter", "rows"], do_not_specialize_on_alignment=["of_filter", "floors"])
def combine_floors(of_filter, floors, rows):
    """Raise floors; NaN counts as -inf, and above 0 as 0. Grid (rows / 256).

    :param floors: [rows] float32, read and written; of the first filter written alone.
    """
    row = tl.program_id(0) * ROWS_PER_PROGRAM + tl.arange(0, ROWS_PER_PROGRAM)
    inside = row < rows
    floor = tl.load(of_filter.floors + row, mask=inside, other=0.0)
    value = tl.load(of_filter.requested + row.to(tl.int64) * of_filter.stride, mask=inside, other=0.0)
    off = tl.full((1,), of_filter.off_bits, tl.int32).to(tl.float32, bitcast=True)
    counts = (floor == floor) & (value == value) & (value != off)
    floor = tl.where(counts, tl.minimum(floor, 0.0), float("-inf"))
    earlier = tl.load(floors + row, mask=inside & (of_filter.is_first == 0), other=float("-inf"))
    tl.store(floors + row, tl.maximum(floor, earlier), mask=inside)


# The host side: the pass over the logits of all rows, and the launches between this and the draw of rows with filters
# from moments. Filters compute floors from these, in torch; a launch for each filter raises the floors of the rows.

_MIN_TILES = 256
"""The least power of two of tiles that kernels are compiled for: one does for vocabularies up to 262,144."""
_MAX_GRID_Y = 32768
"""Grid y limit, rounded down to a power of two."""
_WARPS = 4
_SPREAD = {"count", "mean", "std"}
_MOMENT_SUMS = (
    (torch.float32, _SPREAD),
    *[(torch.float64, _SPREAD)] * 2,
    (torch.float32, {"entropy"}),
    (torch.float32, {"collision"}),
)
"""The dtype of each of :class:`MomentSums`, and the moments that need it."""
_NO_SUMS = MomentSums()


class FloorArguments(NamedTuple):
    """Arguments of the launches for filters from moments."""

    moments: MomentResults
    """To be filled in."""
    compute: Callable[[], Iterable[FilterFloors]]
    """Computes the floors of each filter from the moments that a launch has left."""


def floor_arguments(
    m: SamplingMetadata, wanted: Sequence[Moment], results: Tensor, target_rows: Tensor | None, convert: Any
) -> FloorArguments:
    """Return the arguments for the filters of a batch.

    :param results: [moments, rows] float32, to be filled in.
    :param target_rows: [rows] int64, to be filled in, if there are rows of drafts behind those of the metadata.
    """
    names, values = m.filters_per_row() or ((), results)
    moments: dict[Moment, Tensor] = dict(zip(wanted, results.unbind(), strict=True))

    def compute() -> Iterator[FilterFloors]:
        """Call the filters.

        :raises FilterError: a filter raised, or returned another form.
        """
        of_rows = values if target_rows is None else values.index_select(0, target_rows)
        for number, (floor, value, off) in enumerate(filter_floors(names, of_rows, RowMoments(**moments))):
            floors = floor.contiguous()
            (off_bits,) = struct.unpack("i", struct.pack("f", off))
            yield group(FilterFloors, (*convert((floors, value)), value.stride(0), off_bits, int(not number)))

    return FloorArguments(group(MomentResults, convert((*map(moments.get, MOMENTS), target_rows))), compute)


def floor_placeholders(variant: Variant) -> FloorArguments | None:
    if not variant.params.moments:
        return None
    moments = [Pointer(torch.float32) if name in variant.params.moments else None for name in MOMENTS]
    target_rows = Pointer(torch.int64) if variant.draws_drafts else None
    floors = FilterFloors(FLOAT32, FLOAT32, *[ANY_INT] * 3)
    return FloorArguments(group(MomentResults, (*moments, target_rows)), lambda: [floors])


class TileLaunches:
    """The launches of a variant, and the scratch of what they leave of tiles and rows."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch) -> None:
        configuration, logits = variant.configuration, variant.logits
        self._has_row_index = variant.params.dtypes[1] is not None
        self.count = -(-variant.vocab_size // TILE_SIZE.value)
        self.count_limit = max(_MIN_TILES, 1 << (self.count - 1).bit_length())
        """The power of two that kernels are compiled for."""
        of_tiles = torch.float32, self.count
        self.maxima, self.sums = scratch.reserve(*of_tiles), scratch.reserve(*of_tiles)
        raw_sums = scratch.reserve(*of_tiles) if variant.has_second_sums else None
        self.mode_sums = self.sums if not variant.has_raw_sums or raw_sums is None else raw_sums
        """The sums by which the logprobs mode normalises, behind all launches of the draw."""
        self.entropy_sums = scratch.reserve(*of_tiles) if variant.has_entropy_sums else None
        self.granules = None
        if variant.params.has_filters or (
            variant.has_logprobs and (variant.num_best != 0 or variant.wants_ranks)
        ):
            self.granules = scratch.reserve(logits.dtype, self.count * GRANULES_PER_TILE.value)
        self.statistics = scratch.fields(self.maxima, self.sums, raw_sums, self.granules, self.entropy_sums)
        # The draw gets none of the statistics that only logprobs read: so it is one kernel with them and without.
        granules = self.granules if variant.params.has_filters else None
        self.weighed = scratch.fields(self.maxima, self.sums, None, granules, None)
        self._sums = scratch.fields(
            *[
                (dtype, self.count) if readers.intersection(variant.params.moments) else None
                for dtype, readers in _MOMENT_SUMS
            ]
        )
        self._floor = scratch.reserve(torch.float32) if variant.params.moments else 0
        itemsize = logits.dtype.itemsize
        self._span = configuration.span(itemsize)
        config = TileConfig(
            SPAN=self._span,
            VECTOR=logits.vector,
            IS_ALIGNED=variant.is_aligned,
            IS_NVIDIA=target.is_nvidia,
            IS_RAW=variant.has_entropy_sums and variant.is_tempered_last and variant.has_raw_sums,
        )
        registers = None
        if variant.has_second_sums and not variant.has_entropy_sums and not variant.params.moments:
            registers = configuration.raw_registers(itemsize)
        options = target.options(configuration.tile_warps, registers)
        self._pass = Launch(tile_statistics, {"config": config}, options)
        self._row_moments = Launch(row_moments, {"TILES": self.count_limit}, target.options(_WARPS))
        self._combine_floors = Launch(combine_floors, {}, target.options(_WARPS))

    def grid(self, rows: int) -> Grid:
        """Return the grid of the pass: row ``y + z * grid y``, if in range."""
        return -(-self.count // self._span), min(rows, _MAX_GRID_Y), -(-rows // _MAX_GRID_Y)

    def slots(self, params: RowParams) -> tuple[Any, Any]:
        """Return the temperatures of the slots, and the slot of each row; None where there are none."""
        return params.temperature, params.row_index if self._has_row_index else None

    def step(
        self,
        arguments: LaunchArguments,
        rows: tuple[Any, ...],
        statistics: TileStatistics,
        temperatures: tuple[Any, Any],
        ranked: RankedTokens,
        cleared: tuple[Any, Any],
    ) -> Step:
        """Return the pass over the logits.

        :param temperatures: of the slots, and others of which sums are wanted, too.
        :param cleared: the work queue for large sets, and counters of a verification [rows], set to 0.
        """
        _, index = self.slots(arguments.params)
        sums = _NO_SUMS if arguments.floors is None else group(MomentSums, self._sums(arguments.scratch))
        of_tiles = *rows, *temperatures, index, statistics, sums, ranked, *cleared
        return self._pass, arguments.geometry.tile_grid, of_tiles

    def floor_steps(self, arguments: LaunchArguments, params: RowParams, drafts: DraftRows) -> Iterator[Step]:
        """Yield the launches for moments and floors [rows] float32, which :meth:`floor` has."""
        geometry, scratch, floors = arguments.geometry, arguments.scratch, arguments.floors
        statistics = group(TileStatistics, self.weighed(scratch))
        sums = group(MomentSums, self._sums(scratch))
        moments = drafts, geometry.counts, *self.slots(params), statistics, sums, floors.moments
        yield self._row_moments, geometry.row_grid, moments
        grid = (-(-geometry.counts.rows // ROWS_PER_PROGRAM.value), 1, 1)
        for of_filter in floors.compute():
            yield self._combine_floors, grid, (of_filter, scratch[self._floor], geometry.counts.rows)

    def floor(self, scratch: Sequence[Any]) -> Any:
        return scratch[self._floor]
