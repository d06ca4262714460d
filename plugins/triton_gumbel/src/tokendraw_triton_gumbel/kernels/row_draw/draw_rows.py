"""Launch 2, the draw of a row: a tile by its log-sum-exp plus noise, then a token in that tile.

Reads 8 bytes a tile and one tile of logits a row; for a row with filters also the maxima of its granules and the
granules that may hold a kept token. Writes 9 bytes a row. One program a row; greedy rows take the same path without
noise. A row with more than 128 candidates, or some 110 kept tokens with top-p alone, is left to
:mod:`~tokendraw_triton_gumbel.kernels.large_set.draw_large_set`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.kept_interval.row_chain import KEEPS_DRAW, is_redrawn, load_chain
from tokendraw_triton_gumbel.kernels.large_set.row_state import IS_EXACT, STATE_INTS
from tokendraw_triton_gumbel.kernels.logprobs.mode_values import log_mass, lowest_visible, visible_of_token
from tokendraw_triton_gumbel.kernels.row_draw.filtered_draw import draw_filtered
from tokendraw_triton_gumbel.kernels.row_draw.tile_survey import survey_tiles
from tokendraw_triton_gumbel.kernels.row_draw.token_draw import draw_in_tile
from tokendraw_triton_gumbel.kernels.shared.least_kept import least_kept
from tokendraw_triton_gumbel.kernels.shared.noise import gumbel, streams_of
from tokendraw_triton_gumbel.kernels.shared.row_address import row_logits, row_of
from tokendraw_triton_gumbel.kernels.shared.row_params import (
    EXACT,
    HAS_FLOOR,
    LEAST_KEPT,
    OWN,
    RANKED,
    load_filters,
    noise_key,
    slot_of,
)
from tokendraw_triton_gumbel.kernels.shared.row_values import RowFilters
from tokendraw_triton_gumbel.kernels.shared.temperature import (
    inverse_temperature,
    load_temperature,
    mode_temperature,
)
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, lowest_kept, scaled, weigh


@triton.jit(do_not_specialize=["counts", "flags"])
def draw_rows(
    logits,
    drafts,
    counts,
    statistics,
    row_params,
    flags,
    lists,
    queue,
    state,
    out,
    summary,
    logprobs,
    interval_params,
    interval,
    config: tl.constexpr,
):
    """Each program draws a row. :mod:`.kernels.shared.argument_groups` defines the groups of arguments.

    :param logits: :class:`~.argument_groups.Logits`; ``drafts`` :class:`~.argument_groups.DraftRows`, behind them.
    :param counts: :class:`~.argument_groups.Counts`.
    :param statistics: :class:`~.argument_groups.TileStatistics`, as the pass over the logits left them.
    :param row_params: :class:`~.argument_groups.RowParams` (Triton's own code has a variable ``params``); ``flags``
        say which of them are there, and what is wanted.
    :param lists: :class:`~.argument_groups.CandidateLists`.
    :param queue: :class:`~.argument_groups.WorkQueue` in which rows are announced that are left without a token; what
        is known of them is in ``state``, :class:`~.argument_groups.RowState`.
    :param out: :class:`~.argument_groups.DrawResults`.
    :param summary: :class:`~.argument_groups.RowSummary`.
    :param logprobs: :class:`~.argument_groups.TokenLogprobs`.
    :param interval_params: :class:`~..kept_interval.argument_groups.IntervalParams`.
    :param interval: :class:`~..kept_interval.argument_groups.KeptInterval`, of which ``arrivals`` are written.
    :param config: :class:`~.configs.RowConfig`.
    """
    row, target_row = row_of(tl.program_id(0), drafts, counts)
    if drafts.cu_num_logits is not None:
        if row < 0:
            return
    wants_token: tl.constexpr = True
    if drafts.cu_num_logits is not None:
        wants_token = row < counts.target_rows  # the token of a draft's row is known
    slot = slot_of(target_row, flags, row_params)
    inverse, greedy = inverse_temperature(row_params.temperature, slot)
    key = noise_key(target_row, slot, flags, row_params)
    if config.HAS_FILTERS:
        k, p, min_p, joint = load_filters(slot, logits.vocab_size, flags, row_params)

    first_tile = row.to(tl.int64) * counts.tiles
    survey = survey_tiles(statistics, first_tile, counts.tiles, config.TILES)
    maximum, max_logit = survey.maximum, survey.max_logit
    source = row_logits(row, logits, drafts, counts)
    token = tl.full((), -1, tl.int32)
    is_large = tl.full((), 0, tl.int32)
    mass = tl.full((), -1.0, tl.float32)
    threshold = tl.full((), float("-inf"), tl.float32)
    share = tl.full((), 1.0, tl.float32)
    num_candidates = tl.full((), -1, tl.int32)
    row_flags = flags
    if config.HAS_FILTERS:
        if interval.arrivals is not None:
            row_flags = flags | EXACT
        granules = statistics.granules + row.to(tl.int64) * counts.tiles * GRANULES_PER_TILE
        # Scalars are joined as integers: the interpreter's comparisons of floats are not booleans.
        has_filter = (k > 0).to(tl.int32) + (p < 1).to(tl.int32) + (min_p > 0).to(tl.int32)
        floor = tl.load(row_params.floor + row, mask=(flags & HAS_FLOOR) != 0, other=float("-inf"))
        has_filter += (floor > float("-inf")).to(tl.int32)
        is_bounded = (max_logit > float("-inf")).to(tl.int32) * (max_logit < float("inf")).to(tl.int32)
        if has_filter * is_bounded * (greedy == 0).to(tl.int32) > 0:
            temperature = tl.full((), 1.0, tl.float64)
            if row_params.temperature is not None:
                temperature, _ = load_temperature(row_params.temperature, slot)
            filters = RowFilters(k, p, lowest_kept(max_logit, temperature, min_p, floor), joint)
            if interval.arrivals is not None:
                # Rows of drafts count as the target's: their thresholds are exact in any case.
                chain = load_chain(slot, greedy, key, row_params, interval_params, flags, config.FP64)
                is_exact = is_redrawn(chain, survey, inverse * LOG2_E, k, p, filters.floor)
                row_flags = tl.where(is_exact > 0, flags | EXACT, flags)
                tl.store(state.ints + row.to(tl.int64) * STATE_INTS + IS_EXACT, row_flags & EXACT)
            token, mass, threshold, share, num_candidates, is_large = draw_filtered(
                source,
                row,
                survey,
                granules,
                counts.tiles,
                inverse,
                filters,
                key,
                row_flags,
                wants_token,
                lists,
                queue,
                state,
                config,
            )
        if interval.arrivals is not None:
            tl.store(interval.arrivals + row, tl.where((row_flags & EXACT) != 0, 0, KEEPS_DRAW))
    if is_large == 0:
        if (token < 0) & wants_token:
            if config.HAS_FILTERS:
                token = _draw_unfiltered_row(
                    source,
                    statistics,
                    first_tile,
                    counts.tiles,
                    max_logit,
                    inverse,
                    greedy,
                    key,
                    flags,
                    config,
                )
            else:
                token = _draw_unfiltered(
                    source,
                    maximum,
                    survey.signed_sums,
                    counts.tiles,
                    max_logit,
                    inverse,
                    greedy,
                    key,
                    flags,
                    config,
                )
        if (row_flags & EXACT) != 0:
            tl.store(out.threshold + row, threshold)
            tl.store(out.log_kept + row, tl.log(tl.minimum(share, 1.0)))
        if ((flags & LEAST_KEPT) != 0) & (row < counts.target_rows):
            bound = tl.where(greedy, max_logit, threshold)
            least = bound
            # With a maximum below the bound some logit was dropped, and the bound is a logit.
            is_bounded = (bound > float("-inf")).to(tl.int32)
            if is_bounded * (survey.min_maximum >= bound).to(tl.int32) > 0:
                is_value = tl.full((), 1, tl.int32)
                least = least_kept(source, statistics.maxima + first_tile, counts.tiles, bound, is_value)
            least = tl.where(max_logit < float("inf"), least, float("inf"))
            tl.store(out.least_kept + row, tl.where(max_logit > float("-inf"), least, float("nan")))
    has_tokens = max_logit > float("-inf")
    tl.store(
        logprobs.ranks + row,
        tl.zeros((), tl.int64),
        mask=((flags & RANKED) != 0) & (row < counts.target_rows),
    )
    if not config.HAS_FILTERS:
        if (flags & OWN) != 0:
            token = tl.where(has_tokens, tl.maximum(token, 0), 0)
            _write_logprob(
                source,
                row,
                token,
                slot,
                survey,
                first_tile,
                counts.tiles,
                row_params,
                flags,
                logprobs,
                config.TILES,
            )
    if summary.max_logit is not None:
        if mass < 0:
            weight = weigh(maximum, max_logit, inverse * LOG2_E)
            weight = tl.where(max_logit < float("inf"), weight, (maximum == float("inf")).to(tl.float32))
            mass = tl.where(has_tokens, tl.sum(tl.abs(survey.signed_sums) * weight, 0), 1.0)
        tl.store(summary.max_logit + row, max_logit)
        tl.store(summary.total_weight + row, mass)
        if summary.num_candidates is not None:
            tl.store(summary.num_candidates + row, num_candidates)
    tl.store(out.token_ids + row, tl.where(has_tokens, tl.maximum(token, 0), 0).to(tl.int64))
    tl.store(out.valid + row, has_tokens.to(tl.int32) * (survey.has_nan == 0).to(tl.int32) > 0)


@triton.jit
def _draw_unfiltered(
    source, maximum, signed_sums, tiles, max_logit, inverse, greedy, key, flags, config: tl.constexpr
):
    """Draw a row without filters.

    :param maximum: [TILES] float32, like ``signed_sums``: of the :class:`~.tile_survey.TileSurvey`.
    """
    FP64: tl.constexpr = config.FP64
    tile = tl.arange(0, config.TILES)
    distance = scaled(maximum, max_logit, inverse, FP64)
    of_token, of_tile = streams_of(flags)
    noise = gumbel(key, tile, of_tile, FP64)
    score = tl.log(tl.abs(signed_sums).to(distance.dtype)) + distance + noise
    score = tl.where(greedy, tl.where(maximum == max_logit, 0.0, float("-inf")).to(score.dtype), score)
    chosen = tl.argmax(tl.where(tile < tiles, score, float("-inf")), 0)
    return draw_in_tile(source, chosen, float("-inf"), max_logit, inverse, greedy, key, of_token, FP64)


@triton.jit(noinline=True)
def _draw_unfiltered_row(
    source, statistics, first_tile, tiles, max_logit, inverse, greedy, key, flags, config: tl.constexpr
):
    """Draw a row without filters in a batch with filters, off the filtered rows' common path."""
    tile = tl.arange(0, config.TILES)
    maximum = tl.load(statistics.maxima + first_tile + tile, mask=tile < tiles, other=float("-inf"))
    signed_sums = tl.load(statistics.sums + first_tile + tile, mask=tile < tiles, other=0.0)
    return _draw_unfiltered(
        source, maximum, signed_sums, tiles, max_logit, inverse, greedy, key, flags, config
    )


@triton.jit
def _write_logprob(
    source, row, token, slot, survey, first_tile, tiles, row_params, flags, logprobs, TILES: tl.constexpr
):
    """Write the drawn token and its value in the logprobs mode."""
    tile = tl.arange(0, TILES)
    weight = tl.load(logprobs.sums + first_tile + tile, mask=tile < tiles, other=0.0)
    temperature, inverse, is_greedy = mode_temperature(row_params.temperature, slot, flags)
    shift = log_mass(survey.maximum, weight, survey.max_logit, inverse, flags)
    lowest = lowest_visible(survey.max_logit, temperature, flags)
    value = visible_of_token(source.base, token, survey.max_logit, inverse, shift, lowest, is_greedy, flags)
    tl.store(logprobs.ids + row, token.to(tl.int64))
    tl.store(logprobs.logprobs + row, value)
