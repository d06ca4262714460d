"""Draws from a rank's columns the best full tile, and the best token of the partial tiles at both ends.

Reads 8 bytes a tile, and the logits of up to three tiles a row. Writes some ten words a row, which the ranks gather.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import survey_tiles
from tokendraw_triton_gumbel.kernels.shards.words import store_word
from tokendraw_triton_gumbel.kernels.shared.noise import TILE, TOKEN, gumbel
from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.row_params import noise_key, slot_of
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, scaled, share_of


@triton.jit(do_not_specialize=["shard", "flags"])
def draw_shard(logits, lead, shard, row_params, flags, statistics, bounds, words, config: tl.constexpr):
    """Each program draws from the columns of one row. Grid (rows).

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
    first_tile = row * shard.tiles
    survey = survey_tiles(statistics, first_tile, shard.tiles, config.TILES)
    store_word(words, config.MAX, survey.max_logit)
    store_word(words, config.HAS_NAN, survey.has_nan.to(tl.int32))
    max_logit = survey.max_logit
    threshold = tl.full((), float("-inf"), tl.float32)
    weight = tl.abs(survey.signed_sums)
    if bounds.max_logit is not None:
        max_logit = tl.load(bounds.max_logit + row)
        threshold = tl.load(bounds.threshold + row)
        weight = tl.load(bounds.kept_weight + first_tile + tile, mask=tile < shard.tiles, other=0.0)

    chosen = tl.argmax(survey.maximum, 0)
    distance = scaled(survey.maximum, max_logit, inverse, config.FP64)
    log_weight = tl.log(weight.to(distance.dtype)) + distance
    best_score = tl.full((), float("-inf"), distance.dtype)
    if config.MAY_SAMPLE:
        is_whole = (tile >= shard.whole_first) & (tile < shard.whole_end)
        score = log_weight + gumbel(key, shard.first_tile + tile, TILE, config.FP64)
        score = tl.where(is_whole, score, float("-inf"))
        best_score, drawn_tile = tl.max(score, 0, return_indices=True)  # the first of equal scores
        chosen = tl.where(greedy, chosen, drawn_tile)
    else:
        greedy = slot >= 0
    if config.WANTS_LOGPROBS:
        _store_sums(words, survey, max_logit, weight, inverse, statistics, first_tile, shard.tiles, config)
    if config.SCORE >= 0:
        store_word(words, config.SCORE, best_score)
    source = RowAddress(logits.base + row * logits.row_stride - lead, logits.vocab_size)
    for part in range(config.PARTS):
        local_tile = tl.where(part == 0, chosen, tl.where(part == 1, 0, shard.tiles - 1))
        has_whole = greedy | (shard.whole_end > shard.whole_first)
        is_shared = tl.where(part == 1, shard.whole_first > 0, shard.whole_end < shard.tiles)
        is_present = tl.where(part == 0, has_whole, is_shared)
        largest = tl.full((), float("-inf"), distance.dtype)
        token = tl.full((), 0, tl.int32) + shard.vocab_size
        value = tl.full((), float("-inf"), tl.float32)
        if is_present:
            lowest = tl.where(greedy, float("-inf"), threshold)
            largest, token, value = _best_in_tile(
                source,
                lead,
                shard.first_tile,
                local_tile,
                lowest,
                tl.where(greedy, survey.max_logit, max_logit),
                inverse,
                greedy,
                key,
                config,
            )
        store_word(words, config.IDS + part, token)
        if config.WANTS_LOGPROBS:
            store_word(words, config.X + part, value)
        if part > 0:
            log_sum = tl.max(tl.where((tile == local_tile) & is_present, log_weight, float("-inf")), 0)
            store_word(words, config.LOG_SUM + (part - 1) * config.SCORE_WORDS, log_sum)
            store_word(words, config.KEY + (part - 1) * config.SCORE_WORDS, largest)


@triton.jit
def _best_in_tile(
    source, lead, first_tile, tile, threshold, max_logit, inverse, greedy, key, config: tl.constexpr
):
    """Return the largest ``y + G`` of the kept logits of a tile, the id, the lowest on a tie, and the logit.

    Of a greedy row it is the first logit that equals ``max_logit``.
    """
    element = tl.arange(0, TILE_SIZE)
    column = tile * TILE_SIZE + element
    inside = is_inside(column, source, lead)
    x = tl.load(source.base + column, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= threshold), x, float("-inf"))
    score = scaled(x, max_logit, inverse, config.FP64)
    if config.MAY_SAMPLE:
        score += gumbel(key, first_tile * TILE_SIZE + column, TOKEN, config.FP64)
    score = tl.where(greedy, tl.where(x == max_logit, 0.0, float("-inf")).to(score.dtype), score)
    score = tl.where(x > float("-inf"), score, float("-inf"))
    best_score, chosen = tl.max(score, 0, return_indices=True)  # the first of equal scores
    value = tl.full((), float("-inf"), tl.float32)
    if config.WANTS_LOGPROBS:
        value = tl.max(tl.where(element == chosen, x, float("-inf")), 0)
    local_column = tl.maximum(tile * TILE_SIZE + chosen, lead)
    return best_score, first_tile * TILE_SIZE + local_column, value


@triton.jit
def _store_sums(
    words, survey, max_logit, weight, inverse, statistics, first_tile, tiles, config: tl.constexpr
):
    """Write the kept weight, the weight of all columns, and their weight at T = 1."""
    tile = tl.arange(0, config.TILES)
    share = share_of(survey.maximum, max_logit, inverse * LOG2_E)
    has_tokens = max_logit > float("-inf")  # a row without finite logits is kept entirely
    store_word(words, config.KEPT, tl.where(has_tokens, tl.sum(weight * share, 0), 1.0).to(tl.float64))
    store_word(
        words,
        config.MASS,
        tl.where(has_tokens, tl.sum(tl.abs(survey.signed_sums) * share, 0), 1.0).to(tl.float64),
    )
    raw = tl.abs(survey.signed_sums)
    if statistics.raw_sums is not None:
        raw = tl.load(statistics.raw_sums + first_tile + tile, mask=tile < tiles, other=0.0)
        share = share_of(survey.maximum, max_logit, LOG2_E)
    store_word(words, config.RAW, tl.where(has_tokens, tl.sum(raw * share, 0), 1.0).to(tl.float64))
