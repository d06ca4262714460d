"""The launches of draws, verifications and log-probabilities: grids, scratch, and arguments by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.plugin import LogprobsMode, Moment, best_token_ids, pad_logprobs
from tokendraw_triton_gumbel.kernels.interval import (
    SLOTS_PER_PROGRAM,
    FilterParams,
    IntervalConfig,
    IntervalParams,
    KeptInterval,
    KeptMasses,
    filter_params,
    redraw_rows,
)
from tokendraw_triton_gumbel.kernels.large_set import LargeSetConfig, draw_large_sets
from tokendraw_triton_gumbel.kernels.large_set_passes import (
    COLUMNS,
    MAX_COLLECTED,
    QUEUE_COUNTERS,
    ROUNDS,
    SLOTS,
    STATE_INTS,
    STATE_REALS,
    PassResults,
    RowState,
    WorkQueue,
)
from tokendraw_triton_gumbel.kernels.logprobs import (
    RANK_SPAN,
    BestTokens,
    GivenIds,
    LogprobsConfig,
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
from tokendraw_triton_gumbel.kernels.row_draw import SMALL_CANDIDATES, RowConfig, TokenLogprobs, draw_rows
from tokendraw_triton_gumbel.kernels.rows import (
    COUPLED,
    LOGITS,
    NORMALISED,
    PROBS,
    PROCESSED,
    SCALED,
    TEMPERED,
    CandidateLists,
    DraftRows,
    DrawResults,
    Logits,
    RowParams,
    RowSummary,
    TileStatistics,
)
from tokendraw_triton_gumbel.kernels.tile_pass import (
    ROWS_PER_PROGRAM,
    FilterFloors,
    MomentResults,
    MomentSums,
    RankedTokens,
    TileConfig,
    combine_floors,
    row_moments,
    tile_statistics,
)
from tokendraw_triton_gumbel.kernels.values import GRANULES_PER_TILE
from tokendraw_triton_gumbel.kernels.verify import (
    AcceptConfig,
    DraftTokens,
    ResidualScratch,
    VerifyResults,
    accept_drafts,
    check_probs,
    weigh_blocks,
)
from tokendraw_triton_gumbel.launch import Launch, Step, group
from tokendraw_triton_gumbel.plan import (
    ACCEPT_WARPS,
    PER_CALL,
    PER_PROGRAM,
    PER_REQUEST,
    PER_ROW,
    Geometry,
    Scratch,
    Target,
    Variant,
    VerifyVariant,
    power_of_two,
    tiles_of,
)


class IntervalArguments(NamedTuple):
    """Arguments of the launches for XTC and ``temperature_last``."""

    params: IntervalParams
    filter_params: FilterParams
    """To be filled in."""
    slots: int
    ceiling: Any
    """[rows] float32, to be filled in; None without XTC."""


class LaunchArguments(NamedTuple):
    """Arguments shared by all launches of a call.

    A tensor is an address; in the interpreter the tensor itself; a placeholder where kernels are compiled.
    """

    geometry: Geometry
    logits: tuple[Any, int]
    """The logits, and their row stride."""
    params: RowParams
    flags: int
    """Bits of :mod:`.kernels.rows`."""
    scratch: Sequence[Any]
    """All buffers of scratch."""
    moments: MomentResults = MomentResults()
    """The moments of rows, for filters."""
    floors: Callable[[], Iterable[FilterFloors]] | None = None
    """Computes the floors of each filter from the moments that a launch has left; None: no filter."""
    interval: IntervalArguments | None = None
    """None: no row asks for XTC or ``temperature_last``."""


# The launches between the pass over the logits and the draw of rows with filters from moments.
#
# The moments of each row come from the sums of its tiles. The filters compute floors from these, in torch; a launch
# for each filter raises the floors of the rows.

_WARPS = 4
MOMENTS_OF_SUMS = {
    ("counts", "distances", "squares"): {"count", "mean", "std"},
    ("entropies",): {"entropy"},
    ("collisions",): {"collision"},
}
"""The moments that need some of :class:`~.kernels.tile_pass.MomentSums`."""


def reserve_moment_sums(moments: Collection[Moment], scratch: Scratch, tiles: int) -> list[int | None]:
    """Return the numbers of new buffers of ``MomentSums``, None for sums that no moment needs."""
    buffers: list[int | None] = [None] * len(MomentSums._fields)
    for fields, readers in MOMENTS_OF_SUMS.items():
        if readers.intersection(moments):
            for field in fields:
                dtype = torch.float64 if field in ("distances", "squares") else torch.float32
                buffers[MomentSums._fields.index(field)] = scratch.reserve(dtype, tiles, PER_ROW)
    return buffers


class MomentLaunches:
    """The launches of a variant, and the scratch for sums and floors; without filters there is none."""

    def __init__(
        self, variant: Variant, target: Target, scratch: Scratch, *, tiles: int, max_tiles: int
    ) -> None:
        self._sums = reserve_moment_sums(variant.moments, scratch, tiles)
        self._floor = scratch.reserve(torch.float32, 1, PER_ROW) if variant.moments else None
        self._row_moments = Launch(row_moments, {"TILES": max_tiles}, target.options(_WARPS))
        self._combine_floors = Launch(combine_floors, {}, target.options(_WARPS))

    def sums(self, scratch: Sequence[Any]) -> MomentSums:
        """Return the sums that the pass over the logits has to write."""
        return group(MomentSums, [None if number is None else scratch[number] for number in self._sums])

    def floor(self, scratch: Sequence[Any]) -> Any:
        """Return the floors [rows] float32 that the launches write."""
        assert self._floor is not None  # filters read moments
        return scratch[self._floor]

    def steps(
        self,
        arguments: LaunchArguments,
        floors: Iterable[FilterFloors],
        drafts: DraftRows,
        of_rows: tuple[Any, Any],
        statistics: TileStatistics,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param of_rows: temperatures of the slots, and the slot of each row.
        """
        counts, scratch = arguments.geometry.counts, arguments.scratch
        moments = (drafts, counts, *of_rows, statistics, self.sums(scratch), arguments.moments)
        yield self._row_moments, arguments.geometry.row_grid, moments
        grid = (-(-counts.rows // ROWS_PER_PROGRAM.value), 1, 1)
        for of_filter in floors:
            yield self._combine_floors, grid, (of_filter, self.floor(scratch), counts.rows)


# The launches around a draw whose rows may ask for XTC or the filter order ``temperature_last``.
#
# Before the draw a launch writes the temperature and the min-p that filters look at. Launches 1 to 3 find thresholds
# with these; behind them a launch draws the rows that ask, each from the interval that it keeps, at its own
# temperature.

_TILES_AT_ONCE = 4
_PROGRAMS = 16
"""Programs a multiprocessor, about: a row has parts as long as there are no more."""


class IntervalLaunches:
    """The launches of a variant, and the scratch for weights of tiles."""

    def __init__(
        self, variant: Variant, target: Target, scratch: Scratch, tiles: int, max_tiles: int
    ) -> None:
        self._scratch = scratch.reserve_group([(torch.float32, tiles, PER_ROW), (torch.int32, 1, PER_ROW)])
        self.log_masses = scratch.reserve(torch.float32, 1, PER_ROW) if variant.has_logprobs else None
        """Number of the buffer of :attr:`~.kernels.interval.KeptInterval.log_masses`."""
        self._max_parts, self._programs = -(-tiles // _TILES_AT_ONCE), _PROGRAMS * target.processors
        config = IntervalConfig(
            FP64=target.fp64,
            TILES=max_tiles,
            TILES_AT_ONCE=_TILES_AT_ONCE,
            VECTOR=variant.logits.vector,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_LOGPROBS=variant.has_logprobs,
        )
        self._filter_params = Launch(filter_params, {}, target.options(_WARPS))
        self._redraw = Launch(redraw_rows, {"config": config}, target.options(_WARPS))

    def filter_step(self, arguments: LaunchArguments, interval: IntervalArguments) -> Step:
        """Return the launch that fills in the parameters of the filters."""
        grid = (-(-interval.slots // SLOTS_PER_PROGRAM.value), 1, 1)
        is_last, written = interval.params.temperature_last, interval.filter_params
        return (
            self._filter_params,
            grid,
            (arguments.params, is_last, written, interval.slots, arguments.flags),
        )

    def results(self, arguments: LaunchArguments, interval: IntervalArguments) -> KeptInterval:
        """Return the results and the scratch of the last launch; the draw of rows writes ``arrivals``."""
        scratch = arguments.scratch
        log_masses = None if self.log_masses is None else scratch[self.log_masses]
        return group(KeptInterval, (interval.ceiling, *scratch[self._scratch], log_masses))

    def redraw_step(
        self, arguments: LaunchArguments, rows: Any, statistics: TileStatistics, drawn: Any
    ) -> Step:
        """Return the launch that draws the rows again.

        :param rows: logits, drafts and counts of the draw; ``drawn`` what it leaves, and what is written.
        """
        number, *_ = arguments.geometry.row_grid
        interval = arguments.interval
        assert interval is not None  # or there is no launch
        groups = (*rows, statistics, arguments.params, interval.params, arguments.flags, *drawn)
        return self._redraw, (number, max(1, min(self._max_parts, self._programs // number)), 1), groups


def params_of_filters(params: RowParams, interval: IntervalArguments) -> RowParams:
    """Return the parameters of requests with those that the filters look at in their place."""
    written: dict[str, Any] = interval.filter_params._asdict()
    return params._replace(
        **{name: written[name] for name in ("temperature", "min_p") if written[name] is not None}
    )


# The launches of a draw: over the tiles of all rows, over the rows, and over rows with large kept sets.
#
# The rows of drafts whose logits are known follow the rows of the target in all three.

MIN_TILES = 256
"""Kernels are compiled for a power of two of tiles, from this upwards: one does for vocabularies up to 262,144."""
NO_DRAFTS, NO_MASSES = DraftRows(), KeptMasses()
_NO_FACTS, _NO_LOGPROBS, _NO_RANKS = RowSummary(), (None, None, None), RankedTokens()
_NO_INTERVAL = IntervalParams(), KeptInterval()
_NO_LISTS, _NO_QUEUE, _NO_STATE = CandidateLists(), WorkQueue(), RowState()


class DrawLaunches:
    """The launches of a draw of a variant, and the scratch of the results."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch) -> None:
        configuration, logits, is_nvidia = variant.configuration, variant.logits, target.is_nvidia
        self.vocab_size, self.tiles = variant.vocab_size, tiles_of(variant.vocab_size)
        self.max_tiles = power_of_two(self.tiles, at_least=MIN_TILES)
        self.has_row_index = variant.param_dtypes[1] is not None
        self.has_filters, self.vector, self.fp64 = variant.has_filters, logits.vector, target.fp64
        self._is_drawn = variant.is_drawn
        self._reserve(variant, scratch)
        self._moments = MomentLaunches(variant, target, scratch, tiles=self.tiles, max_tiles=self.max_tiles)
        self.interval = None
        if variant.interval is not None:
            self.interval = IntervalLaunches(variant, target, scratch, self.tiles, self.max_tiles)
        ulp_step = 65536 if logits.dtype == torch.bfloat16 else 1
        row_config = RowConfig(
            HAS_FILTERS=variant.has_filters,
            FP64=target.fp64,
            TILES=self.max_tiles,
            VECTOR=self.vector,
            IS_ALIGNED=variant.is_aligned,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            GRANULES_AT_ONCE=configuration.granules_at_once,
            ULP_STEP=ulp_step,
            IS_NVIDIA=is_nvidia,
        )
        large_set_config = LargeSetConfig(
            FP64=target.fp64,
            TILES=self.max_tiles,
            EXACT_PARTS=configuration.large_set_exact_parts,
            WARPS=configuration.large_set_warps,
            VECTOR=self.vector,
            IS_ALIGNED=variant.is_aligned,
            ULP_STEP=ulp_step,
            IS_NVIDIA=is_nvidia,
        )
        itemsize = logits.dtype.itemsize
        # Of rows with two temperatures, whether entropies are wanted at T = 1.
        is_raw = variant.has_entropy_sums and variant.is_tempered_last and variant.has_raw_sums
        tile_config = TileConfig(
            configuration.span(itemsize), self.vector, variant.is_aligned, is_nvidia, is_raw
        )
        has_few_sums = not variant.has_entropy_sums and not variant.moments
        registers = (
            configuration.raw_registers(itemsize) if variant.has_second_sums and has_few_sums else None
        )
        options = target.options(configuration.tile_warps, registers)
        self._tile_pass = Launch(tile_statistics, {"config": tile_config}, options)
        self._row_draw = Launch(
            draw_rows,
            {"config": row_config},
            target.options(
                configuration.plain_row_warps if variant.is_plain_draw else configuration.row_warps,
                configuration.row_registers if variant.has_filters else None,
            ),
        )
        self._large_set_draw = Launch(
            draw_large_sets,
            {"config": large_set_config},
            target.options(configuration.large_set_warps, configuration.large_set_registers),
        )

    def _reserve(self, variant: Variant, scratch: Scratch) -> None:
        real, whole, tiles = torch.float32, torch.int32, self.tiles
        self.maxima, self.sums = (scratch.reserve(real, tiles, PER_ROW) for _ in range(2))
        self.raw_sums = scratch.reserve(real, tiles, PER_ROW) if variant.has_second_sums else None
        self.mode_sums = self.sums if not variant.has_raw_sums or self.raw_sums is None else self.raw_sums
        """Number of the sums by which the logprobs mode normalises, behind all launches of the draw."""
        self.entropy_sums = scratch.reserve(real, tiles, PER_ROW) if variant.has_entropy_sums else None
        self.summary = None
        """Numbers of the buffers of ``RowSummary``, of rows whose kept tokens a later launch weighs."""
        if variant.weighs_kept or variant.interval is not None:
            self.summary = [scratch.reserve(dtype, 1, PER_ROW) for dtype in (real, real, whole)]
        self.granules = None
        if variant.has_filters or (variant.has_logprobs and (variant.num_best != 0 or variant.wants_ranks)):
            self.granules = scratch.reserve(variant.logits.dtype, tiles * GRANULES_PER_TILE.value, PER_ROW)
        if variant.has_filters:
            self.candidates = scratch.reserve_group(
                [(dtype, SMALL_CANDIDATES, PER_ROW) for dtype in (whole, real, whole)]
            )
            self._queue = scratch.reserve_group(
                [(whole, QUEUE_COUNTERS.value, PER_CALL), (whole, ROUNDS.value, PER_ROW), (whole, 1, PER_ROW)]
            )
            self._state = scratch.reserve_group(
                [(real, STATE_REALS.value, PER_ROW), (whole, STATE_INTS.value, PER_ROW)]
            )
            self._search = scratch.reserve(real, MAX_COLLECTED.value, PER_PROGRAM)
            self._results = scratch.reserve_group(
                [
                    (real, SLOTS.value * tiles * COLUMNS.value, PER_ROW),
                    (whole, MAX_COLLECTED.value, PER_ROW),
                ]
            )

    def steps(
        self,
        arguments: LaunchArguments,
        out: Sequence[Any],
        *,
        logprobs_out: Sequence[Any] = _NO_LOGPROBS,
        drafts: DraftRows = NO_DRAFTS,
        facts: RowSummary = _NO_FACTS,
        counters: Any = None,
        ranked: RankedTokens = _NO_RANKS,
        kept: KeptMasses = NO_MASSES,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param out: token ids, valid; thresholds, log_kept_mass and least kept logits, or None.
        :param logprobs_out: ranks, set to 0; ids and values of the drawn tokens, or None.
        :param drafts: the logits of drafts, their row stride, and the offsets of the requests.
        :param facts: of a verification, where the maxima, masses and numbers of candidates of the rows go.
        :param counters: of a verification, [rows], set to 0.
        :param ranked: tokens to be scored, whose ranks are counted.
        :param kept: of a verification by probabilities whose rows may keep intervals: their masses, to be filled in.
        """
        geometry, head, params, flags, scratch, _, floors, interval = arguments
        token_ids, valid, thresholds, log_kept, least_kept = out
        logits, counts = group(Logits, (*head, self.vocab_size)), geometry.counts
        rows = logits, drafts, counts
        maxima, sums = scratch[self.maxima], scratch[self.sums]
        raw_sums = None if self.raw_sums is None else scratch[self.raw_sums]
        granules = None if self.granules is None else scratch[self.granules]
        entropy_sums = None if self.entropy_sums is None else scratch[self.entropy_sums]
        statistics = group(TileStatistics, (maxima, sums, raw_sums, granules, entropy_sums))
        lists, queue, state = _NO_LISTS, _NO_QUEUE, _NO_STATE
        # The draw gets none of the statistics that only logprobs read: so it is one kernel with them and without.
        weighed = group(TileStatistics, (maxima, sums, None, granules if self.has_filters else None, None))
        if self.has_filters:
            lists = group(CandidateLists, scratch[self.candidates])
            queue, state = group(WorkQueue, scratch[self._queue]), group(RowState, scratch[self._state])
        if self.summary is not None:
            facts = group(RowSummary, [scratch[index] for index in self.summary])
        raw_temperature, of_interval = None, _NO_INTERVAL
        if interval is not None and self.interval is not None:
            of_interval = interval.params, self.interval.results(arguments, interval)
            if interval.params.temperature_last is not None:
                yield self.interval.filter_step(arguments, interval)
                params = params_of_filters(params, interval)
                raw_temperature = interval.filter_params.other_temperature
        of_rows = params.temperature, params.row_index if self.has_row_index else None
        moment_sums = self._moments.sums(scratch)
        of_tiles = of_rows[0], raw_temperature, of_rows[1], statistics, moment_sums, ranked, queue, counters
        yield self._tile_pass, geometry.tile_grid, (*rows, *of_tiles)
        if not self._is_drawn:
            return
        if floors is not None:
            yield from self._moments.steps(arguments, floors(), drafts, of_rows, weighed)
            params = params._replace(floor=self._moments.floor(scratch))
        # An output that nobody wants is not written, so another tensor of its dtype stands in.
        details = (maxima, maxima) if thresholds is None else (thresholds, log_kept)
        drawn = group(DrawResults, (token_ids, valid, *details, maxima if least_kept is None else least_kept))
        ranks, drawn_ids, drawn_logprobs = logprobs_out
        drawn_out = group(
            TokenLogprobs,
            (
                token_ids if ranks is None else ranks,
                sums if raw_sums is None else raw_sums,
                token_ids if drawn_ids is None else drawn_ids,
                maxima if drawn_logprobs is None else drawn_logprobs,
            ),
        )
        work, results = (lists, queue, state), (drawn, facts, drawn_out)
        yield (
            self._row_draw,
            geometry.row_grid,
            (*rows, weighed, params, flags, *work, *results, *of_interval),
        )
        if self.has_filters:
            search, passes = scratch[self._search], group(PassResults, scratch[self._results])
            # One kernel, with drafts and without: without, the target stands in.
            draft_rows = group(DraftRows, (*(head if drafts.base is None else drafts[:2]), None))
            yield (
                self._large_set_draw,
                geometry.large_set_grid,
                (logits, draft_rows, counts, weighed, flags, search, queue, state, passes, drawn),
            )
        if interval is not None and self.interval is not None:
            left = lists, facts, drawn, of_interval[1], kept
            yield self.interval.redraw_step(arguments, rows, statistics, left)


PROBS_AT_ONCE = 4096
"""Probabilities a program."""
_ACCEPT_REGISTERS = 128
"""Limit of registers a thread of the launch over the requests, so that its programs fit. NVIDIA."""
_CHECK_WARPS = 4


class VerifyLaunches:
    """The launches of a verification of a variant, and the scratch of the results."""

    def __init__(
        self, variant: Variant, verify: VerifyVariant, draw: DrawLaunches, target: Target, scratch: Scratch
    ) -> None:
        real, whole, is_coupled = torch.float32, torch.int32, verify.draft_kind == COUPLED
        self._draft_kind, self._draw, self._is_padded = verify.draft_kind, draw, int(verify.is_padded)
        self._tokens = scratch.reserve(torch.int64, 1, PER_ROW)
        self._valid = scratch.reserve(torch.bool, 1, PER_ROW)
        num_facts = 4 if not is_coupled else 2 if variant.needs_thresholds else 0
        self.row_facts = [scratch.reserve(real, 1, PER_ROW) for _ in range(num_facts)]
        """Thresholds and kept masses of the rows; then maxima and masses, or where rows may keep intervals their
        greatest kept logits and kept masses."""
        self._num_candidates = self._counters = self._weights = self._log_shares = None
        if not is_coupled:
            if variant.interval is not None and draw.summary is not None:
                # The draw's summary is of rows before XTC, and the last launch reads the kept masses.
                self._num_candidates = draw.summary[-1]
                self._log_shares = scratch.reserve(real, 1, PER_ROW)
            elif variant.has_filters:
                self._num_candidates = scratch.reserve(whole, 1, PER_ROW)
            self._counters = scratch.reserve(whole, 1, PER_ROW)
            self._weights = scratch.reserve(real, 2 * draw.tiles, PER_ROW if verify.is_block else PER_REQUEST)
        config = AcceptConfig(
            DRAFT_KIND=verify.draft_kind,
            IS_BLOCK=verify.is_block,
            STEPS=verify.max_steps,
            FP64=draw.fp64,
            TILES=draw.max_tiles,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_FILTERS=variant.has_filters,
            HAS_CEILING=variant.has_ceiling,
            WARPS=ACCEPT_WARPS,
            VECTOR=draw.vector,
            IS_NVIDIA=target.is_nvidia,
        )
        options = target.options(ACCEPT_WARPS, _ACCEPT_REGISTERS)
        self._weigh_blocks = Launch(weigh_blocks, {"config": config}, options) if verify.is_block else None
        self._accept_drafts = Launch(accept_drafts, {"config": config}, options)
        self._check_probs = Launch(check_probs, {"AT_ONCE": PROBS_AT_ONCE}, {"num_warps": _CHECK_WARPS})

    def steps(
        self,
        arguments: LaunchArguments,
        out: Sequence[Any],
        *,
        drafts: tuple[Any, int | None],
        chain: tuple[Any, int, Any],
        ranks: Any = None,
        least_kept: Any = None,
    ) -> Iterator[Step]:
        """Yield the launches.

        :param out: token ids, numbers of accepted drafts, valid; the tokens by row, written if the flags say so.
        :param drafts: logits or probabilities of drafts, and their row stride.
        :param chain: the ids of the drafts, how many (in a row, if padded), and the offsets of the requests.
        :param ranks: set to 0, or None.
        :param least_kept: the least kept logits of the target's rows, or None.
        """
        geometry, head, params, flags, scratch, *_ = arguments
        draw, size = self._draw, geometry.size

        def buffer(index: int | None) -> Any:
            return None if index is None else scratch[index]

        tokens, valid, counters = scratch[self._tokens], scratch[self._valid], buffer(self._counters)
        row_facts = [scratch[i] for i in self.row_facts] + [None] * (4 - len(self.row_facts))
        thresholds, log_kept, maxima, masses = row_facts
        kept, log_shares = NO_MASSES, log_kept
        if self._log_shares is not None:
            log_shares = scratch[self._log_shares]
            kept = group(KeptMasses, (maxima, masses, log_shares))
        facts = group(RowSummary, (maxima, masses, buffer(self._num_candidates)))
        rows = group(DraftRows, (*drafts, chain[2]))
        yield from draw.steps(
            arguments,
            (tokens, valid, thresholds, log_kept, least_kept),
            logprobs_out=(ranks, None, None),
            drafts=rows if self._draft_kind == LOGITS else NO_DRAFTS,
            facts=facts,
            counters=counters,
            kept=kept,
        )
        if self._draft_kind == PROBS:
            checked = (*drafts, draw.vocab_size, counters, size.requests)
            grid = size.draft_rows, -(-draw.vocab_size // PROBS_AT_ONCE), 1
            yield self._check_probs, grid, checked
        bounds = (None, None) if self._draft_kind == COUPLED else (thresholds, log_shares)
        judged = group(DrawResults, (tokens, valid, *bounds, None))
        shared = (
            group(Logits, (*head, draw.vocab_size)),
            rows,
            group(DraftTokens, (*chain[:2], self._is_padded, draw.vocab_size - 1)),
            geometry.counts,
            params,
            flags,
            judged,
            facts,
            CandidateLists(None, *(scratch[draw.candidates][1:] if draw.has_filters else ())),
            group(ResidualScratch, (counters, buffer(self._weights))),
        )
        if self._weigh_blocks is not None:
            yield self._weigh_blocks, geometry.block_grid, shared
        yield self._accept_drafts, geometry.request_grid, (*shared, group(VerifyResults, out))


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

    :param maxima: [rows, tiles] float32, of tiles of 1024 ids; NaN counts as -inf.
    :param sums: [rows, tiles] float32: sum of ``exp((x - maximum) / T)``, or how many +inf; the sign says nothing. T is
        1 in raw modes.
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
# An N above :data:`MOST_LOGPROBS` is left to ``torch.topk``.


class BestSearch(NamedTuple):
    """Constants of the search for the N best, for an N up to a limit."""

    width: int
    """Upper limit of N."""
    candidates: int
    """Room for candidates."""
    warps: int
    granules_at_once: int
    """Granules read at once."""

    def config(self, tiles: int, vector: int, num_best: int) -> LogprobsConfig:
        """Return the constants of the kernel for rows of so many tiles."""
        max_tiles = power_of_two(tiles, at_least=MIN_TILES)
        maxima, granules = _MAXIMA, max_tiles * GRANULES_PER_TILE.value // _MAXIMA
        if self.width <= _FEW:
            # Maxima of fewer than 2 N tiles say little about the N-th value.
            maxima, granules = (_QUARTERS if tiles < 2 * num_best else 0), 4
        return LogprobsConfig(
            VECTOR=vector,
            TILES=max_tiles,
            MAXIMA=maxima,
            GRANULES=granules,
            WIDTH=self.width,
            CANDIDATES=self.candidates,
            GRANULES_AT_ONCE=self.granules_at_once,
        )


SEARCHES = (
    BestSearch(width=64, candidates=128, warps=4, granules_at_once=16),
    BestSearch(width=256, candidates=1024, warps=8, granules_at_once=64),
    BestSearch(width=1024, candidates=2048, warps=8, granules_at_once=64),
)
MOST_LOGPROBS = SEARCHES[-1].width
"""The largest N that a kernel orders."""
_FEW = SEARCHES[0].width
"""Upper limit of N that maxima of tiles bound, or of quarters of tiles; above, those of granules do."""
_QUARTERS = 512
"""Upper limit of quarters of tiles."""
_MAXIMA = 4096
"""Upper limit of maxima of one granule or of groups of granules."""
_OPTIONS = {"num_warps": 4}
_IDS_AT_ONCE = 64
"""Given ids of a program."""
_SCORED_TILES = 8
"""Tiles of kept logits read at once for an entropy, and warps of the program."""
_SCALED, _NORMALISED, _TEMPERED, _PROCESSED = (bit.value for bit in (SCALED, NORMALISED, TEMPERED, PROCESSED))


class LogprobsLaunches:
    """The launches for the logprobs of a variant, and the scratch between launches."""

    def __init__(
        self, draw: DrawLaunches, num_best: int, mode: LogprobsMode, scratch: Scratch, *, is_masked: bool
    ) -> None:
        """Reserve scratch and configure the kernels.

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
        self._candidates = scratch.reserve(torch.int32, search.candidates if is_searched else 0, PER_ROW)
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
