"""Surveys a rank's columns before the draw: its K largest values, how many tie with the last, and its mass.

Reads 8 bytes a tile, the maxima of the granules, and those granules that may hold one of the values. Where more than
a fixed number of logits reach the bound, by ties or because they lie close together, the search of
:mod:`~tokendraw_triton_gumbel.kernels.logprobs.best_candidates` finds the K-th one. Writes the words that are sent, and
as scratch a list of granules and the candidates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.logprobs.best_candidates import (
    bound_by_maxima,
    collect_best,
    count_ties,
    order_candidates,
    search_edge,
)
from tokendraw_triton_gumbel.kernels.row_draw.candidates import list_granules
from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import survey_tiles
from tokendraw_triton_gumbel.kernels.shards.words import put
from tokendraw_triton_gumbel.kernels.shared.float_keys import LOWEST
from tokendraw_triton_gumbel.kernels.shared.row_values import Row
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, share_of

_BINS = tl.constexpr(256)


@triton.jit(
    do_not_specialize=["logits", "shard", "fields"],
    do_not_specialize_on_alignment=["logits"],  # granules begin anywhere, by the lead
)
def survey_columns(
    logits, shard, fields, slots, statistics, scratch, masses, fresh, words, config: tl.constexpr
):
    """One program surveys the columns of one row. Grid (rows).

    :param logits: :class:`~..shared.argument_groups.Logits`, whose ``vocab_size`` counts the columns with the lead.
    :param shard: :class:`.argument_groups.Shard`; ``fields`` :class:`.argument_groups.SurveyFields`, ``slots``
        :class:`.argument_groups.SlotTemperatures`, ``scratch`` :class:`.argument_groups.SurveyScratch`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` of the columns.
    :param masses: [rows, 256] int64: what values weigh by the first digit of their keys, if ranks tell that.
    :param fresh: [rows] int64, sent along; or None.
    :param words: [rows, fields.width] int32, written: the fields of :class:`tokendraw.vocab_parallel.Survey`.
    :param config: :class:`~..shared.configs.SurveyConfig`.
    """
    CANDIDATES: tl.constexpr = config.CANDIDATES
    row = tl.program_id(0).to(tl.int64)
    words += row * fields.width
    if fresh is not None:
        put(words, fields.fresh, tl.load(fresh + row))
    survey = survey_tiles(statistics, row * shard.tiles, shard.tiles, config.TILES)
    top = survey.top
    if config.MASSES == 1:
        slot = row
        if slots.row_index is not None:
            slot = tl.load(slots.row_index + row).to(tl.int64)
        inverse, _ = inverse_temperature(slots.temperature, slot)
        mass = tl.sum(tl.abs(survey.marked) * share_of(survey.maximum, top, inverse * LOG2_E), 0)
        put(words, fields.mass, mass.to(tl.float64))
    elif config.MASSES > 1:
        digit = tl.arange(0, _BINS)
        units = tl.load(masses + row * _BINS + digit).to(tl.float64)
        one = (tl.full((), 1, tl.int64) << fields.bits).to(tl.float64)
        put(words, fields.mass + 2 * digit, units / one)

    granules = statistics.granules + row * shard.tiles * GRANULES_PER_TILE
    listed = scratch.granules + row * shard.tiles * GRANULES_PER_TILE
    keys = scratch.keys + row * scratch.room
    source = Row(logits.base + row * logits.row_stride - shard.lead, logits.vocab_size)
    number = shard.tiles * GRANULES_PER_TILE
    low = tl.maximum(_bound_of(granules, number, top, fields.count, config), LOWEST)
    count = list_granules(granules, shard.tiles, low, listed, number)
    found = collect_best(source, shard.lead, listed, count, low, keys, config.VECTOR, CANDIDATES)
    tied = tl.full((), float("-inf"), tl.float32)
    if found > CANDIDATES:
        low, tied = search_edge(
            source, shard.lead, listed, count, low, top, fields.count, config.VECTOR, CANDIDATES
        )
        tl.debug_barrier()  # nobody reads the last list any more
        count = list_granules(granules, shard.tiles, low, listed, number)
        found = collect_best(source, shard.lead, listed, count, low, keys, config.VECTOR, CANDIDATES)
    x, _, place = order_candidates(keys, found, CANDIDATES)
    i = tl.arange(0, CANDIDATES)
    there = i < found
    is_told = there & (place < fields.count)
    tl.store(words + fields.x + place, x.to(tl.int32, bitcast=True), mask=is_told)
    behind = tl.zeros((CANDIDATES,), tl.float32) + tied
    tl.store(words + fields.x + i, behind.to(tl.int32, bitcast=True), mask=(i >= found) & (i < fields.count))
    last = tl.min(tl.where(is_told, x, float("inf")), 0)
    ties = tl.sum((there & (place >= fields.count) & (x == last)).to(tl.int32), 0)
    if (found < fields.count).to(tl.int32) * (tied > float("-inf")).to(tl.int32) > 0:
        tl.debug_barrier()
        count = list_granules(granules, shard.tiles, tied, listed, number)
        ties = count_ties(source, shard.lead, listed, count, tied, config.VECTOR) - (fields.count - found)
    put(words, fields.ties, ties)


@triton.jit
def _bound_of(granules, number, top, n, config: tl.constexpr):
    """Return a value that at least ``n`` maxima of groups of granules reach, or -inf."""
    MAXIMA: tl.constexpr = config.MAXIMA
    GRANULES: tl.constexpr = config.GRANULES
    i = tl.arange(0, MAXIMA)[:, None] * GRANULES + tl.arange(0, GRANULES)[None, :]
    maxima = tl.load(granules + i, mask=i < number, other=float("-inf")).to(tl.float32)
    return bound_by_maxima(tl.max(maxima, 1), top, n)
