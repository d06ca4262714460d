"""The draw of rows with XTC or ``temperature_last`` from the thresholds of launches 2 and 3.

A row with few candidates is drawn from their list by one program. The tiles of another are weighed by several, the last
of which draws. Rows that ask for neither keep their token, and so do those that launch 2 has marked. Reads 1 KB of a
row with few candidates, and of another the granules that reach its threshold.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.kept_interval.row_chain import KEEPS_DRAW, load_chain
from tokendraw_triton_gumbel.kernels.kept_interval.wide_interval import draw_tiles, is_likely
from tokendraw_triton_gumbel.kernels.row_draw.token_draw import draw_candidate
from tokendraw_triton_gumbel.kernels.shared.argument_groups import TileStatistics
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX
from tokendraw_triton_gumbel.kernels.shared.least_kept import least_kept, least_reaching
from tokendraw_triton_gumbel.kernels.shared.noise import streams_of
from tokendraw_triton_gumbel.kernels.shared.row_address import row_logits, row_of
from tokendraw_triton_gumbel.kernels.shared.row_params import (
    DRAFT,
    LEAST_KEPT,
    load_filters,
    noise_key,
    slot_of,
)
from tokendraw_triton_gumbel.kernels.shared.temperature import inverse_temperature
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.shared.weights import LOG2_E, lowest_kept, scaled, weigh


@triton.jit
def _draw_candidates(
    lists,
    row,
    num_candidates,
    threshold,
    max_logit,
    filter_scale,
    inverse,
    chain,
    key,
    flags,
    config: tl.constexpr,
):
    """Draw a row from its candidates; return (token, the greatest kept logit, the kept mass relative to that one)."""
    N: tl.constexpr = config.SMALL_CANDIDATES
    i = tl.arange(0, N)
    place = row.to(tl.int64) * N + i
    x = tl.load(lists.logits + place, mask=i < num_candidates, other=float("-inf"))
    ids = tl.load(lists.ids + place, mask=i < num_candidates, other=INT32_MAX)
    kept = (x >= threshold) & (x > float("-inf"))
    peak = max_logit
    if chain.applies > 0:
        weight = tl.where(kept, weigh(x, max_logit, filter_scale), 0.0)
        likely = kept & is_likely(x, max_logit, filter_scale, tl.sum(weight, 0), chain.limit)
        if tl.sum(likely.to(tl.int32), 0) > 1:
            peak = tl.min(tl.where(likely, x, float("inf")), 0)
            kept &= x <= peak
    of_token, of_tile = streams_of(flags)
    x = tl.where(kept, x, float("-inf"))
    weight = weigh(x, peak, inverse * LOG2_E)
    score = scaled(x, peak, inverse, config.FP64)
    token = draw_candidate(score, weight, kept, ids, key, of_token, of_tile, config.FP64)
    return token, peak, tl.sum(weight, 0)


@triton.jit
def _log_share(
    statistics, first_tile, tiles, is_last, kept_mass, peak, max_logit, inverse, TILES: tl.constexpr
):
    """Return the logarithm of the kept share of a row's mass at its temperature."""
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(statistics.maxima + first_tile + tile, mask=inside, other=float("-inf"))
    total = tl.load(statistics.sums + first_tile + tile, mask=inside, other=0.0)
    if statistics.raw_sums is not None:
        other = tl.load(statistics.raw_sums + first_tile + tile, mask=inside, other=0.0)
        total = tl.where(is_last > 0, other, total)
    mass = tl.sum(tl.abs(total) * weigh(maximum, max_logit, inverse * LOG2_E), 0)
    log_kept = tl.log(kept_mass) + scaled(peak, max_logit, inverse, False) - tl.log(mass)
    return tl.minimum(log_kept, 0.0)


@triton.jit
def _exchange_sums(statistics, first_tile, tiles, TILES: tl.constexpr):
    """Exchange the sums of a row's tiles at T = 1 with those at the row's temperature."""
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    first = tl.load(statistics.sums + first_tile + tile, mask=inside, other=0.0)
    second = tl.load(statistics.raw_sums + first_tile + tile, mask=inside, other=0.0)
    tl.debug_barrier()  # both were read
    tl.store(statistics.sums + first_tile + tile, second, mask=inside)
    tl.store(statistics.raw_sums + first_tile + tile, first, mask=inside)


@triton.jit(
    do_not_specialize=["counts", "flags"],
    do_not_specialize_on_alignment=["interval_params", "interval"],
)
def redraw_rows(
    logits,
    drafts,
    counts,
    statistics,
    row_params,
    interval_params,
    flags,
    lists,
    summary,
    out,
    interval,
    kept,
    config: tl.constexpr,
):
    """Draw the rows again that ask for XTC or ``temperature_last``. Grid (rows, parts of a row with many tokens).

    :param logits: :class:`~..shared.argument_groups.Logits`; ``drafts`` :class:`~..shared.argument_groups.DraftRows`,
        behind them, which XTC leaves alone.
    :param counts: :class:`~..shared.argument_groups.Counts`.
    :param statistics: :class:`~..shared.argument_groups.TileStatistics` at the temperature of the filters;
        ``raw_sums`` are those at the other one of 1 and the row's temperature. Afterwards they are at T = 1, and
        ``sums`` at the row's temperature.
    :param row_params: :class:`~..shared.argument_groups.RowParams` of the requests.
    :param interval_params: :class:`.IntervalParams`.
    :param lists: :class:`~..shared.argument_groups.CandidateLists`, and ``summary``
        :class:`~..shared.argument_groups.RowSummary`, as launch 2 left them.
    :param out: :class:`~..shared.argument_groups.DrawResults`, read and written.
    :param interval: :class:`.KeptInterval`, written; ``kept`` :class:`.KeptMasses`, written.
    :param config: :class:`~..shared.configs.IntervalConfig`.
    """
    row, target_row = row_of(tl.program_id(0), drafts, counts)
    is_target = tl.full((), 1, tl.int32)
    chain_flags = flags
    if drafts.cu_num_logits is not None:
        if row < 0:
            return
        is_target = (row < counts.target_rows).to(tl.int32)
        chain_flags = tl.where(is_target > 0, flags, flags | DRAFT)
    slot = slot_of(target_row, flags, row_params)
    key = noise_key(target_row, slot, flags, row_params)
    inverse, greedy = inverse_temperature(row_params.temperature, slot)
    chain = load_chain(slot, greedy, key, row_params, interval_params, chain_flags, config.FP64)
    max_logit = tl.load(summary.max_logit + row)
    peak = max_logit
    first_tile = row.to(tl.int64) * counts.tiles
    is_finisher = (tl.program_id(1) == 0).to(tl.int32)
    token = tl.full((), -1, tl.int32)
    kept_mass = tl.full((), 0.0, tl.float32)
    is_bounded = (max_logit > float("-inf")).to(tl.int32) * (max_logit < float("inf")).to(tl.int32)
    is_bounded *= (tl.load(interval.arrivals + row) != KEEPS_DRAW).to(tl.int32)
    if (chain.is_last + chain.applies) * is_bounded > 0:
        source = row_logits(row, logits, drafts, counts)
        maxima = statistics.maxima + first_tile
        filter_scale = tl.where(chain.is_last > 0, 1.0, inverse) * LOG2_E
        earlier_threshold = tl.load(out.threshold + row)
        threshold = earlier_threshold
        if chain.is_last > 0:
            _, _, min_p, _ = load_filters(slot, logits.vocab_size, flags, row_params)
            one, off = tl.full((), 1.0, tl.float64), tl.full((), float("-inf"), tl.float32)
            threshold = tl.maximum(threshold, lowest_kept(max_logit, one, min_p, off))
        is_raised = (threshold > earlier_threshold).to(tl.int32)
        num_candidates = tl.load(summary.num_candidates + row)
        if num_candidates < 0:
            granules = statistics.granules + first_tile * GRANULES_PER_TILE
            mass = tl.load(summary.total_weight + row) * tl.exp(tl.load(out.log_kept + row))
            token, peak, kept_mass, is_finisher = draw_tiles(
                source,
                TileStatistics(maxima, None, None, granules, None),
                interval.sums + first_tile,
                interval.arrivals + row,
                counts.tiles,
                threshold,
                is_raised,
                mass,
                max_logit,
                filter_scale,
                inverse,
                chain,
                key,
                flags,
                config,
            )
        elif is_finisher > 0:
            token, peak, kept_mass = _draw_candidates(
                lists,
                row,
                num_candidates,
                threshold,
                max_logit,
                filter_scale,
                inverse,
                chain,
                key,
                flags,
                config,
            )
        if token >= 0:
            tl.store(out.token_ids + row, token.to(tl.int64))
            if config.HAS_LOGPROBS:
                log_kept = _log_share(
                    statistics,
                    first_tile,
                    counts.tiles,
                    chain.is_last,
                    kept_mass,
                    peak,
                    max_logit,
                    inverse,
                    config.TILES,
                )
                tl.store(out.log_kept + row, log_kept)
                tl.store(interval.log_masses + row, tl.log(kept_mass))
        if is_raised * is_finisher > 0:
            tl.store(out.threshold + row, threshold)
        is_dropped_above = (peak < max_logit).to(tl.int32)
        is_wanted = ((flags & LEAST_KEPT) != 0).to(tl.int32) * is_finisher * is_target
        if is_wanted * (is_raised + is_dropped_above) > 0:
            least = least_reaching(source, threshold)
            if is_dropped_above == 0:
                is_value = tl.full((), 1, tl.int32)
                least = least_kept(source, maxima, counts.tiles, least, is_value)
            tl.store(out.least_kept + row, least)
    if config.HAS_LOGPROBS:
        if interval_params.temperature_last is not None:
            if statistics.raw_sums is not None:
                if chain.is_last * is_finisher > 0:
                    tl.debug_barrier()  # the sums were read
                    _exchange_sums(statistics, first_tile, counts.tiles, config.TILES)
    if kept.peaks is not None:
        if is_finisher > 0:
            # Where the earlier draw holds, its numbers do, bit for bit.
            earlier_mass, log_share = tl.load(summary.total_weight + row), tl.load(out.log_kept + row)
            tl.store(kept.peaks + row, peak)
            tl.store(kept.masses + row, tl.where(token >= 0, kept_mass, earlier_mass))
            tl.store(kept.log_shares + row, tl.where(token >= 0, 0.0, log_share))
    if interval.ceiling is not None:
        if is_finisher * is_target > 0:
            ceiling = tl.where(max_logit > float("-inf"), peak, float("nan"))
            tl.store(interval.ceiling + row, tl.where(chain.has_xtc > 0, ceiling, float("inf")))
