"""The launches of a draw: the pass over the logits, moments and floors, the draw, intervals, large sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from tokendraw.plugin import Moment
from tokendraw_triton_gumbel.kernels.arguments import (
    QUEUE_COUNTERS,
    ROUNDS,
    CandidateLists,
    DraftRows,
    DrawResults,
    IntervalConfig,
    LargeSetConfig,
    Logits,
    MomentSums,
    PassResults,
    RankedTokens,
    RowConfig,
    RowParams,
    RowState,
    RowSummary,
    SearchScratch,
    TileConfig,
    TileStatistics,
    TokenLogprobs,
    WorkQueue,
)
from tokendraw_triton_gumbel.kernels.interval import (
    SLOTS_PER_PROGRAM,
    IntervalParams,
    KeptInterval,
    KeptMasses,
    filter_params,
    redraw_rows,
)
from tokendraw_triton_gumbel.kernels.large_set import draw_large_sets
from tokendraw_triton_gumbel.kernels.large_set_passes import (
    COLUMNS,
    MAX_COLLECTED,
    SLOTS,
    STATE_INTS,
    STATE_REALS,
)
from tokendraw_triton_gumbel.kernels.row_draw import SMALL_CANDIDATES, draw_rows
from tokendraw_triton_gumbel.kernels.tile_pass import (
    ROWS_PER_PROGRAM,
    FilterFloors,
    combine_floors,
    row_moments,
    tile_statistics,
)
from tokendraw_triton_gumbel.kernels.values import GRANULES_PER_TILE
from tokendraw_triton_gumbel.launch import IntervalArguments, Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import (
    PER_CALL,
    PER_PROGRAM,
    PER_ROW,
    Configuration,
    RowAccess,
    Scratch,
    Target,
    Variant,
    power_of_two,
    tiles_of,
)

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
"""The moments that need some of :class:`~.kernels.arguments.MomentSums`."""


def reserve_moment_sums(moments: Collection[Moment], scratch: Scratch, tiles: int) -> list[int | None]:
    """Return the numbers of new buffers of ``MomentSums``, None for sums that no moment needs."""
    buffers: list[int | None] = [None] * len(MomentSums._fields)
    for fields, readers in MOMENTS_OF_SUMS.items():
        if readers.intersection(moments):
            for field in fields:
                buffers[MomentSums._fields.index(field)] = scratch.reserve(torch.float32, tiles, PER_ROW)
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

        :param floors: of each filter; computed from the moments once the first launch is there.
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
        self,
        arguments: LaunchArguments,
        logits: Logits,
        drafts: DraftRows,
        statistics: TileStatistics,
        lists: CandidateLists,
        summary: RowSummary,
        drawn: DrawResults,
        params: IntervalParams,
        results: KeptInterval,
        kept: KeptMasses,
    ) -> Step:
        """Return the launch that draws the rows again; all groups but the last are those of the draw.

        :param kept: to be filled in for a verification by probabilities.
        """
        rows, *_ = arguments.geometry.row_grid
        return (
            self._redraw,
            (rows, max(1, min(self._max_parts, self._programs // rows)), 1),
            (
                logits,
                drafts,
                arguments.geometry.counts,
                statistics,
                arguments.params,
                params,
                arguments.flags,
                lists,
                summary,
                drawn,
                results,
                kept,
            ),
        )


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


def tile_pass(
    kernel: Any,
    logits: RowAccess,
    configuration: Configuration,
    target: Target,
    *,
    is_aligned: bool,
    has_raw_sums: bool,
    has_further_sums: bool = False,
    is_raw: bool = False,
) -> Launch:
    """Return the launch of a pass over logits, with the statistics of every tile as its result.

    :param is_raw: whether entropies of rows with two temperatures are wanted at T = 1.
    """
    itemsize, is_nvidia = logits.dtype.itemsize, target.is_nvidia
    config = TileConfig(configuration.span(itemsize), logits.vector, is_aligned, is_nvidia, is_raw)
    registers = configuration.raw_registers(itemsize) if has_raw_sums and not has_further_sums else None
    return Launch(kernel, {"config": config}, target.options(configuration.tile_warps, registers))


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
            BY_FACTORS=is_nvidia and configuration.row_registers is None,
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
        self._tile_pass = tile_pass(
            tile_statistics,
            logits,
            configuration,
            target,
            is_aligned=variant.is_aligned,
            has_raw_sums=variant.has_second_sums,
            has_further_sums=variant.has_entropy_sums or variant.moments != (),
            is_raw=variant.has_entropy_sums and variant.is_tempered_last and variant.has_raw_sums,
        )
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
            self._search = scratch.reserve_group(
                [(whole, self.max_tiles, PER_PROGRAM), (real, MAX_COLLECTED.value, PER_PROGRAM)]
            )
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
        yield (
            self._tile_pass,
            geometry.tile_grid,
            (
                *rows,
                of_rows[0],
                raw_temperature,
                of_rows[1],
                statistics,
                moment_sums,
                ranked,
                queue,
                counters,
            ),
        )
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
        row_arguments = (
            *rows,
            weighed,
            params,
            flags,
            lists,
            queue,
            state,
            drawn,
            facts,
            drawn_out,
            *of_interval,
        )
        yield self._row_draw, geometry.row_grid, row_arguments
        if self.has_filters:
            search = group(SearchScratch, scratch[self._search])
            results = group(PassResults, scratch[self._results])
            # One kernel, with drafts and without: without, the target stands in.
            draft_rows = group(DraftRows, (*(head if drafts.base is None else drafts[:2]), None))
            yield (
                self._large_set_draw,
                geometry.large_set_grid,
                (logits, draft_rows, counts, weighed, flags, search, queue, state, results, drawn),
            )
        if interval is not None and self.interval is not None:
            yield self.interval.redraw_step(
                arguments, logits, drafts, statistics, lists, facts, drawn, *of_interval, kept
            )
