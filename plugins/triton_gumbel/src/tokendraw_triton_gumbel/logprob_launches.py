"""The launches for log-probabilities and scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.plugin import LogprobsMode, best_token_ids, pad_logprobs
from tokendraw_triton_gumbel.draw_launches import MIN_TILES, DrawLaunches
from tokendraw_triton_gumbel.kernels import rows as row_params
from tokendraw_triton_gumbel.kernels.arguments import Logits, LogprobsConfig
from tokendraw_triton_gumbel.kernels.logprobs import (
    RANK_SPAN,
    BestTokens,
    GivenIds,
    LogprobScratch,
    RequestedLogprobs,
    RowCandidates,
    RowDraws,
    Scores,
    count_ranks,
    given_logprobs,
    row_logprobs,
    score_rows,
)
from tokendraw_triton_gumbel.kernels.row_draw import SMALL_CANDIDATES
from tokendraw_triton_gumbel.kernels.values import GRANULES_PER_TILE
from tokendraw_triton_gumbel.launch import Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import PER_ROW, Scratch, power_of_two

# Log-probabilities of the drawn token and of more best tokens than a kernel can order, by ``torch.topk``.

_LOGITS_AT_ONCE = 1 << 23
"""Upper limit of logits that PyTorch gets at once: 40 bytes of scratch each, as measured on a CPU."""
_INF = float("inf")
_LARGEST = torch.finfo(torch.float32).max


def topk_logprobs(
    logits: Tensor,
    m: SamplingMetadata,
    token_ids: Tensor,
    maxima: Tensor,
    sums: Tensor,
    thresholds: Tensor,
    log_kept_mass: Tensor,
    mode: LogprobsMode,
    num_best: int,
    kept: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Return ids and values [rows, 1 + N] of logits [rows, V] for any N, some rows at a time. Waits for nothing.

    :param token_ids: [rows] int64, the drawn tokens.
    :param maxima: [rows, tiles] float32, of tiles of 1024 ids; NaN counts as -inf.
    :param sums: [rows, tiles] float32: sum of ``exp((x - maximum) / T)``, or how many +inf; the sign says nothing. T is
        1 in raw modes.
    :param thresholds: [rows] float32: ``x >= threshold`` is kept.
    :param log_kept_mass: [rows] float32.
    :param num_best: N.
    :param kept: ceilings [rows, 1], and the logarithms of the masses kept below these, where values are shares of them;
        else None.
    """
    logits = logits.detach()
    rows, width = logits.shape[0], 1 + num_best
    ids = torch.empty((rows, width), dtype=torch.int64, device=logits.device)
    values = torch.empty((rows, width), dtype=torch.float32, device=logits.device)
    temperatures, requested = m.per_row("temperature"), m.per_row("logprobs")
    if temperatures is None or mode.startswith("raw"):
        temperatures = torch.ones(rows, dtype=torch.float64, device=logits.device)
    every_id = torch.arange(logits.shape[1], device=logits.device)
    for part in row_chunks(logits):
        token = token_ids[part, None].clamp(
            0, logits.shape[1] - 1
        )  # nothing is read at what a failed draw left
        temperature = temperatures[part, None].to(torch.float64)
        is_greedy = ~(temperature > 0)
        temperature = torch.where(is_greedy, 1.0, temperature)
        inverse = temperature.clamp(max=1.7e308).reciprocal().clamp(max=1.7e308)
        max_logit = peak = maxima[part].amax(-1, keepdim=True)
        if kept is not None:
            peak = torch.fmin(max_logit, kept[0][part])
        lowest = torch.full_like(max_logit, -_INF)
        if mode != "raw_logits":  # what float32 shows as -inf is -inf to the order, too
            lowest = (peak - _LARGEST * temperature).to(torch.float32)
        if mode.startswith("processed"):
            lowest = torch.maximum(lowest, thresholds[part, None])
        x = _visible(as_float32(logits[part]), every_id, token, lowest, is_greedy)
        columns = torch.cat((token, best_token_ids(x, num_best)), -1)
        x = x.gather(-1, columns)
        if mode != "raw_logits":
            y = _scaled(x, peak, inverse)
            if mode.endswith("logprobs"):
                weights = sums[part].abs() * _scaled(maxima[part], max_logit, inverse).exp()
                log_mass = weights.sum(-1, keepdim=True).log()
                if mode == "processed_logprobs":
                    log_mass += log_kept_mass[part, None]
                if kept is not None:
                    log_mass = torch.where(peak < max_logit, kept[1][part], log_mass)
                y -= log_mass
            y.clamp_(max=0.0)  # rounded sums may leave more
            x = torch.where(is_greedy & (columns == token), 0.0, y)
        x = torch.where(max_logit > -_INF, x, -_INF)
        ids[part], values[part] = pad_logprobs(columns, x, None if requested is None else requested[part])
    return ids, values


def row_chunks(logits: Tensor) -> Iterator[slice]:
    """Yield slices of the rows of logits [rows, V], few enough to be ordered at once."""
    step = max(1, _LOGITS_AT_ONCE // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, min(start + step, len(logits)))


def as_float32(logits: Tensor) -> Tensor:
    """Return a copy of logits in float32, with -inf for NaN."""
    x = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    return x.nan_to_num_(nan=-_INF, posinf=_INF, neginf=-_INF)


def _visible(x: Tensor, ids: Tensor, token: Tensor, lowest: Tensor, is_greedy: Tensor) -> Tensor:
    """Return logits with -inf for those below ``lowest`` and, in greedy rows, for all but the drawn token."""
    return torch.where((x >= lowest) & (~is_greedy | (ids == token)), x, -_INF)


def _scaled(x: Tensor, max_logit: Tensor, inverse: Tensor) -> Tensor:
    """``(x - max x) / T`` in float64: 0 at the maximum, even if infinite."""
    return torch.where(x == max_logit, 0.0, (x.to(torch.float64) - max_logit) * inverse)


# The launches for logprobs of drawn or scored tokens, from the statistics of the draw in scratch.
#
# The launch over groups of tiles counts ranks. The launch over rows reads 8 bytes a tile, the maximum of every 64
# logits, and the few logits that matter. The draw of rows without filters fills in the drawn token's column itself,
# so that N = 0 takes a launch for its ranks alone.
#
# Candidates for the N best are compared all with all or, for a larger N, sorted. An N above :data:`MOST_LOGPROBS` is
# left to ``torch.topk``.


class BestSearch(NamedTuple):
    """Constants of the search for the N best, for an N up to a limit."""

    width: int
    """Upper limit of N."""
    candidates: int
    """Room for candidates."""
    warps: int
    granules_at_once: int = 0
    """Granules read at once; 0: candidates are compared all with all, not sorted."""

    def config(self, tiles: int, vector: int, num_best: int) -> LogprobsConfig:
        """Return the constants of the kernel for rows of so many tiles."""
        max_tiles, is_sorted = power_of_two(tiles, at_least=MIN_TILES), self.granules_at_once > 0
        # Maxima of fewer than 2 N tiles say little about the N-th value.
        maxima, granules = (_QUARTERS if tiles < 2 * num_best else 0), 4
        if is_sorted:
            maxima, granules = _MAXIMA, max_tiles * GRANULES_PER_TILE.value // _MAXIMA
        return LogprobsConfig(
            VECTOR=vector,
            TILES=max_tiles,
            MAXIMA=maxima,
            GRANULES=granules,
            WIDTH=self.width,
            CANDIDATES=self.candidates,
            IS_SORTED=is_sorted,
            GRANULES_AT_ONCE=self.granules_at_once,
        )


SEARCHES = (
    BestSearch(width=64, candidates=128, warps=4),
    BestSearch(width=256, candidates=1024, warps=8, granules_at_once=64),
    BestSearch(width=1024, candidates=2048, warps=8, granules_at_once=64),
)
MOST_LOGPROBS = SEARCHES[-1].width
"""The largest N that a kernel orders."""
_QUARTERS = 512
"""Upper limit of quarters of tiles where there are fewer than 2 N tiles and candidates are not sorted."""
_MAXIMA = 4096
"""Upper limit of maxima of one granule or of groups of granules, where candidates are sorted."""
_OPTIONS = {"num_warps": 4}
_IDS_AT_ONCE = 64
"""Given ids of a program."""
_SCORED_TILES = 8
"""Tiles of kept logits read at once for an entropy, and warps of the program."""
_SCALED, _NORMALISED, _TEMPERED, _PROCESSED = (
    bit.value for bit in (row_params.SCALED, row_params.NORMALISED, row_params.TEMPERED, row_params.PROCESSED)
)


class LogprobsLaunches:
    """The launches for the logprobs of a variant, and the scratch between launches."""

    def __init__(
        self, draw: DrawLaunches, num_best: int, mode: LogprobsMode, scratch: Scratch, *, is_masked: bool
    ) -> None:
        """Reserve scratch and configure the kernels.

        :param num_best: N, at most V.
        :param is_masked: whether the logits shown are others than those that the pass has read.
        """
        self._draw, self._flags = draw, mode_flags(mode)
        self.mode, self.num_best = mode, num_best
        self.is_masked = is_masked
        self.log_masses = None
        """Number of the buffer of kept masses, if the values are shares of what is kept below a ceiling."""
        if is_masked and mode == "processed_logprobs" and draw.interval is not None:
            self.log_masses = draw.interval.log_masses
        self.by_kernel = num_best <= (0 if is_masked else MOST_LOGPROBS)
        """Whether the kernel orders the best tokens."""
        search = next((search for search in SEARCHES if num_best <= search.width), SEARCHES[-1])
        is_searched = num_best > 0 and self.by_kernel
        self._granules = scratch.reserve(torch.int32, draw.tiles * 16 if is_searched else 0, PER_ROW)
        config = search.config(draw.tiles, draw.vector, num_best)
        candidates = torch.int32 if config.IS_SORTED else torch.int64
        self._candidates = scratch.reserve(candidates, search.candidates if is_searched else 0, PER_ROW)
        self._count_ranks = Launch(count_ranks, {"SPAN": RANK_SPAN, "VECTOR": draw.vector}, _OPTIONS)
        self._search = Launch(row_logprobs, {"config": config}, {"num_warps": search.warps})
        self._score = Launch(
            score_rows,
            {"AT_ONCE": _SCORED_TILES, "CANDIDATES": SMALL_CANDIDATES, "TILES": config.TILES},
            {"num_warps": 4 if draw.entropy_sums is not None else _SCORED_TILES},
        )
        self._given = Launch(given_logprobs, {"IDS": _IDS_AT_ONCE, "TILES": config.TILES}, _OPTIONS)

    def steps(
        self,
        arguments: LaunchArguments,
        requested: Any,
        drawn: Sequence[Any],
        *,
        ranked: Sequence[Any] | None,
        best: Sequence[Any] | None,
        given: Sequence[Any] | None = None,
        given_out: Sequence[Any] = (),
    ) -> Iterator[Step]:
        """Yield the launches, but for :meth:`score_step`.

        :param requested: how many of the N each slot requests; None: all N.
        :param drawn: token ids [rows], thresholds [rows] and log_kept_mass [rows]: ``x >= threshold`` is kept.
        :param ranked: tokens [rows] int64, and their ranks [rows] int64, 0, to be filled in; None: no row wants ranks,
            or the pass over the logits counts them.
        :param best: ids and values [rows, 1 + N] to be filled in; None: these launches fill in none.
        :param given: the fields of :class:`~.kernels.logprobs.GivenIds`; None: no row gives any.
        :param given_out: ids and values [rows, M] to be filled in.
        """
        draw, (geometry, head, _, _, scratch, *_) = self._draw, arguments
        interval, rows = arguments.interval, geometry.size.rows
        maxima = scratch[draw.maxima]
        granules = None if draw.granules is None else scratch[draw.granules]
        logits = group(Logits, (*head, draw.vocab_size))
        asked, draws = self._rows(arguments, requested, drawn)
        if ranked is not None:
            grid, (tokens, ranks) = (rows * -(-draw.tiles // RANK_SPAN), 1, 1), ranked
            ceiling = None if interval is None or not self.is_masked else interval.ceiling
            yield (
                self._count_ranks,
                grid,
                (logits, draw.tiles, rows, asked, tokens, maxima, granules, ceiling, ranks, self._flags),
            )
        if given is not None:
            ids, values = group(GivenIds, given), group(BestTokens, given_out)
            parts = -(-ids.count // _IDS_AT_ONCE)
            yield (
                self._given,
                (rows, parts, 1),
                (logits, draw.tiles, asked, draws, ids, values, self._flags),
            )
        if best is None:
            return
        yield (
            self._search,
            (rows, 1, 1),
            (
                logits,
                draw.tiles,
                self.num_best,
                asked,
                draws,
                # Without best tokens no granule is read, so the maxima stand in.
                maxima if granules is None else granules,
                group(LogprobScratch, (scratch[self._granules], scratch[self._candidates])),
                group(BestTokens, best),
                self._flags,
            ),
        )

    def score_step(
        self,
        arguments: LaunchArguments,
        requested: Any,
        drawn: Sequence[Any],
        scored: Any,
        out: Sequence[Any],
    ) -> Step:
        """Return the launch that scores tokens, behind all others, which fill their columns too.

        :param scored: [rows] int64; ``requested`` and ``drawn`` are those of :meth:`steps`.
        :param out: ids and values [rows, 1 + N], ranks [rows] or None, entropies [rows], and least kept logits [rows]
            or None.
        """
        draw, (geometry, head, _, _, scratch, *_) = self._draw, arguments
        ids, values, *of_rows = out
        interval = arguments.interval
        candidates = RowCandidates()
        if draw.entropy_sums is None and draw.summary is not None:
            candidates = RowCandidates(scratch[draw.candidates][1], scratch[draw.summary[-1]])
        return (
            self._score,
            (geometry.size.rows, 1, 1),
            (
                group(Logits, (*head, draw.vocab_size)),
                draw.tiles,
                *self._rows(arguments, requested, drawn),
                scored,
                None if draw.entropy_sums is None else scratch[draw.entropy_sums],
                candidates,
                None if interval is None else interval.ceiling,
                1 + self.num_best,
                group(Scores, (ids, values, *of_rows)),
                self._flags,
            ),
        )

    def _rows(
        self, arguments: LaunchArguments, requested: Any, drawn: Sequence[Any]
    ) -> tuple[RequestedLogprobs, RowDraws]:
        """Return the groups of what the rows request, and of what the draw has left of them."""
        draw, (_, _, params, _, scratch, *_, interval) = self._draw, arguments
        kept = (None, None)
        if interval is not None and self.log_masses is not None:
            kept = interval.ceiling, scratch[self.log_masses]
        sums = scratch[draw.mode_sums]
        index = params.row_index if draw.has_row_index else None
        return (
            group(RequestedLogprobs, (params.temperature, index, requested)),
            group(RowDraws, (drawn[0], scratch[draw.maxima], sums, *drawn[1:], *kept)),
        )


def mode_flags(mode: LogprobsMode) -> int:
    """Return the steps of a mode as bits for the kernels."""
    flags = 0 if mode == "raw_logits" else _SCALED
    flags += _NORMALISED if mode.endswith("logprobs") else 0
    flags += 0 if mode.startswith("raw") else _TEMPERED
    return flags + (_PROCESSED if mode.startswith("processed") else 0)
