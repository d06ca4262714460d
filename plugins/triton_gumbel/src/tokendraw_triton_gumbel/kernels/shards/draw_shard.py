"""The draw from a rank's columns: the best whole tile, and the best token of its part of the tiles at both ends.

Reads 8 bytes a tile, and of each row the logits of up to three tiles. Writes some ten words a row, which are sent.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import survey_tiles
from tokendraw_triton_gumbel.kernels.shards.words import put
from tokendraw_triton_gumbel.kernels.shared.noise import TILE, TOKEN, gumbel
from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.row_params import noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.row_values import Row
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, scaled, share_of


@triton.jit(do_not_specialize=["shard", "flags"])
def draw_shard(logits, lead, shard, row_params, flags, statistics, bounds, words, config: tl.constexpr):
    """One program draws from the columns of one row. Grid (rows).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with the lead.
    :param lead: of :class:`.argument_groups.Shard`. By itself, since it says how tiles are aligned.
    :param shard: :class:`.argument_groups.Shard`; ``bounds`` :class:`.argument_groups.RowBounds`.
    :param row_params: :class:`~..shared.argument_groups.RowParams`; ``flags`` say which of them are there.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the columns.
    :param words: [rows, config.WIDTH] int32, written: the fields of :class:`tokendraw.vocab_parallel.Draws`.
    :param config: :class:`~..shared.configs.ShardDrawConfig`.
    """
    row = tl.program_id(0).to(tl.int64)
    words += row * config.WIDTH
    slot = slot_of(row, flags, row_params)
    inverse, greedy = inverse_temperature(row_params.temperature, slot)
    key = noise_key(row, slot, flags, row_params)
    tile = tl.arange(0, config.TILES)
    first = row * shard.tiles
    survey = survey_tiles(statistics, first, shard.tiles, config.TILES)
    put(words, config.MAX, survey.top)
    put(words, config.HAS_NAN, survey.has_nan.to(tl.int32))
    top = survey.top
    floor = tl.full((), float("-inf"), tl.float32)
    weight = tl.abs(survey.marked)
    if bounds.tops is not None:
        top = tl.load(bounds.tops + row)
        floor = tl.load(bounds.thresholds + row)
        weight = tl.load(bounds.kept + first + tile, mask=tile < shard.tiles, other=0.0)

    chosen = tl.argmax(survey.maximum, 0)
    distance = scaled(survey.maximum, top, inverse, config.FP64)
    log_weight = tl.log(weight.to(distance.dtype)) + distance
    best = tl.full((), float("-inf"), distance.dtype)
    if config.DRAWN:
        is_whole = (tile >= shard.whole_first) & (tile < shard.whole_end)
        score = log_weight + gumbel(key, shard.first_tile + tile, TILE, config.FP64)
        score = tl.where(is_whole, score, float("-inf"))
        best, drawn = tl.max(score, 0, return_indices=True)  # of equal ones the first
        chosen = tl.where(greedy, chosen, drawn)
    else:
        greedy = slot >= 0
    if config.DESCRIBED:
        _put_sums(words, survey, top, weight, inverse, statistics, first, shard.tiles, config)
    if config.SCORE >= 0:
        put(words, config.SCORE, best)
    source = Row(logits.base + row * logits.row_stride - lead, logits.vocab_size)
    for part in range(config.PARTS):
        own = tl.where(part == 0, chosen, tl.where(part == 1, 0, shard.tiles - 1))
        has_whole = greedy | (shard.whole_end > shard.whole_first)
        is_shared = tl.where(part == 1, shard.whole_first > 0, shard.whole_end < shard.tiles)
        is_there = tl.where(part == 0, has_whole, is_shared)
        largest = tl.full((), float("-inf"), distance.dtype)
        token = tl.full((), 0, tl.int32) + shard.vocab_size
        value = tl.full((), float("-inf"), tl.float32)
        if is_there:
            least = tl.where(greedy, float("-inf"), floor)
            largest, token, value = _best_in_tile(
                source,
                lead,
                shard.first_tile,
                own,
                least,
                tl.where(greedy, survey.top, top),
                inverse,
                greedy,
                key,
                config,
            )
        put(words, config.IDS + part, token)
        if config.DESCRIBED:
            put(words, config.X + part, value)
        if part > 0:
            log_sum = tl.max(tl.where((tile == own) & is_there, log_weight, float("-inf")), 0)
            put(words, config.LOG_SUM + (part - 1) * config.REAL, log_sum)
            put(words, config.KEY + (part - 1) * config.REAL, largest)


@triton.jit
def _best_in_tile(source, lead, first_tile, tile, floor, top, inverse, greedy, key, config: tl.constexpr):
    """Return the largest ``y + G`` of the kept logits of a tile, the id, the lowest on a tie, and the logit.

    Of a greedy row it is the first logit that equals ``top``.
    """
    place = tl.arange(0, TILE_SIZE)
    column = tile * TILE_SIZE + place
    inside = is_inside(column, source, lead)
    x = tl.load(source.base + column, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= floor), x, float("-inf"))
    score = scaled(x, top, inverse, config.FP64)
    if config.DRAWN:
        score += gumbel(key, first_tile * TILE_SIZE + column, TOKEN, config.FP64)
    score = tl.where(greedy, tl.where(x == top, 0.0, float("-inf")).to(score.dtype), score)
    score = tl.where(x > float("-inf"), score, float("-inf"))
    best, chosen = tl.max(score, 0, return_indices=True)  # of equal ones the first
    value = tl.full((), float("-inf"), tl.float32)
    if config.DESCRIBED:
        value = tl.max(tl.where(place == chosen, x, float("-inf")), 0)
    own = tl.maximum(tile * TILE_SIZE + chosen, lead)
    return best, first_tile * TILE_SIZE + own, value


@triton.jit
def _put_sums(words, survey, top, weight, inverse, statistics, first, tiles, config: tl.constexpr):
    """Write the kept weight, that of all columns, and that at T = 1."""
    tile = tl.arange(0, config.TILES)
    share = share_of(survey.maximum, top, inverse * LOG2_E)
    some = top > float("-inf")  # else everything is kept of a row that holds nothing
    put(words, config.KEPT, tl.where(some, tl.sum(weight * share, 0), 1.0).to(tl.float64))
    put(words, config.MASS, tl.where(some, tl.sum(tl.abs(survey.marked) * share, 0), 1.0).to(tl.float64))
    raw = tl.abs(survey.marked)
    if statistics.raw_sums is not None:
        raw = tl.load(statistics.raw_sums + first + tile, mask=tile < tiles, other=0.0)
        share = share_of(survey.maximum, top, LOG2_E)
    put(words, config.RAW, tl.where(some, tl.sum(raw * share, 0), 1.0).to(tl.float64))
