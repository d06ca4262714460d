"""Surveys a rank's columns before the draw: the K largest values, the ties with the last, masses and sums.

Reads 8 bytes a tile, 4 to 20 more for filters from moments, the maxima of the granules, and the granules that may hold
one of the values. If more than a fixed number of logits reach the bound, by ties or because they lie close together,
the search of :mod:`~tokendraw_triton_gumbel.kernels.logprobs.best_candidates` finds the K-th one. Writes the words that
the ranks gather, and as scratch a list of granules and the candidates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.best_candidates import (
    bound_by_maxima,
    collect_best,
    count_ties,
    group_maxima,
    order_candidates,
    search_edge,
)
from tokendraw_triton_gumbel.kernels.row_draw.candidates import list_granules
from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import survey_tiles
from tokendraw_triton_gumbel.kernels.shards.moment_words import store_moment_sums
from tokendraw_triton_gumbel.kernels.shards.words import store_word
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.row_params import TEMPERED
from tokendraw_triton_gumbel.kernels.shared.row_values import RowAddress
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature, mode_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, share_of

_BINS = tl.constexpr(256)


@triton.jit(
    do_not_specialize=["logits", "shard", "fields"],
    do_not_specialize_on_alignment=["logits"],  # granules begin anywhere, by the lead
)
def survey_columns(
    logits, shard, fields, slots, statistics, moments, scratch, masses, fresh, words, config: tl.constexpr
):
    """Each program surveys the columns of one row. Grid (rows).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with the lead.
    :param shard: :class:`.argument_groups.Shard`; ``fields`` :class:`.argument_groups.ShardSurveyFields`, ``slots``
        :class:`.argument_groups.SlotTemperatures`, ``scratch`` :class:`.argument_groups.SurveyScratch`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the columns.
    :param moments: :class:`~..shared.argument_groups.MomentSums`, likewise.
    :param masses: [rows, 256] int64: the weights of values by the first digit of their keys, if the survey has them.
    :param fresh: [rows] int64, copied to the words; or None.
    :param words: [rows, fields.width] int32, written: the fields of :class:`tokendraw.vocab_parallel.Survey`.
    :param config: :class:`~..shared.configs.SurveyConfig`.
    """
    CANDIDATES: tl.constexpr = config.CANDIDATES
    row = tl.program_id(0).to(tl.int64)
    words += row * fields.width
    if fresh is not None:
        store_word(words, fields.fresh, tl.load(fresh + row))
    survey = survey_tiles(statistics, row * shard.tiles, shard.tiles, config.TILES)
    max_logit = survey.max_logit
    if config.MASSES == 1 or config.SUMS > 0:
        slot = row
        if slots.row_index is not None:
            slot = tl.load(slots.row_index + row).to(tl.int64)
    if config.SUMS > 0:
        _, exact_inverse, _ = mode_temperature(slots.temperature, slot, TEMPERED)
        tile = tl.arange(0, config.TILES)
        place = row * shard.tiles + tile
        store_moment_sums(
            words, fields.sums, moments, survey, place, tile < shard.tiles, exact_inverse, config.SUMS
        )
    if config.MASSES == 1:
        inverse, _ = inverse_temperature(slots.temperature, slot)
        mass = tl.sum(tl.abs(survey.signed_sums) * share_of(survey.maximum, max_logit, inverse * LOG2_E), 0)
        store_word(words, fields.mass, mass.to(tl.float64))
    elif config.MASSES > 1:
        digit = tl.arange(0, _BINS)
        units = tl.load(masses + row * _BINS + digit).to(tl.float64)
        unit = (tl.full((), 1, tl.int64) << fields.bits).to(tl.float64)
        store_word(words, fields.mass + 2 * digit, units / unit)

    granules = statistics.granules + row * shard.tiles * GRANULES_PER_TILE
    granule_list = scratch.granules + row * shard.tiles * GRANULES_PER_TILE
    keys = scratch.keys + row * scratch.room
    source = RowAddress(logits.base + row * logits.row_stride - shard.lead, logits.vocab_size)
    num_granules = shard.tiles * GRANULES_PER_TILE
    maxima = group_maxima(granules, num_granules, config.MAXIMA, config.GRANULES)
    low = tl.maximum(bound_by_maxima(maxima, max_logit, fields.count), LOWEST)
    count = list_granules(granules, shard.tiles, low, granule_list, num_granules)
    num_candidates = collect_best(
        source, shard.lead, granule_list, count, low, keys, config.VECTOR, CANDIDATES
    )
    tied_value = tl.full((), float("-inf"), tl.float32)
    if num_candidates > CANDIDATES:
        low, tied_value = search_edge(
            source, shard.lead, granule_list, count, low, max_logit, fields.count, config.VECTOR, CANDIDATES
        )
        tl.debug_barrier()  # all threads have read the previous list
        count = list_granules(granules, shard.tiles, low, granule_list, num_granules)
        num_candidates = collect_best(
            source, shard.lead, granule_list, count, low, keys, config.VECTOR, CANDIDATES
        )
    x, _, rank = order_candidates(keys, num_candidates, CANDIDATES)
    i = tl.arange(0, CANDIDATES)
    mask = i < num_candidates
    is_sent = mask & (rank < fields.count)
    tl.store(words + fields.x + rank, x.to(tl.int32, bitcast=True), mask=is_sent)
    tail = tl.zeros((CANDIDATES,), tl.float32) + tied_value
    tl.store(
        words + fields.x + i, tail.to(tl.int32, bitcast=True), mask=(i >= num_candidates) & (i < fields.count)
    )
    last_value = tl.min(tl.where(is_sent, x, float("inf")), 0)
    ties = tl.sum((mask & (rank >= fields.count) & (x == last_value)).to(tl.int32), 0)
    if (num_candidates < fields.count).to(tl.int32) * (tied_value > float("-inf")).to(tl.int32) > 0:
        tl.debug_barrier()
        count = list_granules(granules, shard.tiles, tied_value, granule_list, num_granules)
        ties = count_ties(source, shard.lead, granule_list, count, tied_value, config.VECTOR) - (
            fields.count - num_candidates
        )
    store_word(words, fields.ties, ties)
