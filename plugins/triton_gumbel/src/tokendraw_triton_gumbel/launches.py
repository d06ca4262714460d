"""The launches of draws, verifications and log-probabilities: grids, scratch, and arguments by name."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw import SamplingMetadata
from tokendraw.filters import RowMoments, filter_floors
from tokendraw.plugin import MOMENTS, LogprobsMode, Moment, best_token_ids, pad_logprobs
from tokendraw_triton_gumbel.compilation import ANY_INT, FLOAT32, Pointer, any_pointer
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
    SearchScratch,
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
from tokendraw_triton_gumbel.kernels.row_draw import RowConfig, draw_rows
from tokendraw_triton_gumbel.kernels.rows import (
    COUPLED,
    LOGITS,
    NORMALISED,
    PROBS,
    PROCESSED,
    SCALED,
    SMALL_CANDIDATES,
    TEMPERED,
    CandidateLists,
    DraftRows,
    DrawResults,
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
from tokendraw_triton_gumbel.launch import DrawArguments, Launch, LaunchArguments, Step, group
from tokendraw_triton_gumbel.plan import (
    ACCEPT_WARPS,
    FIELDS,
    MIN_TILES,
    PER_CALL,
    PER_PROGRAM,
    PER_REQUEST,
    PER_ROW,
    ParamTensors,
    Scratch,
    Target,
    Variant,
    interval_params,
    power_of_two,
    tiles_of,
)

# The pass over the logits of all rows, and the launches between this and the draw of rows with filters from moments:
# the moments of each row come from the sums of its tiles, filters compute floors from these, in torch, and a launch
# for each filter raises the floors of the rows.

_WARPS = 4
_SPREAD = {"count", "mean", "std"}
_READERS = MomentSums(_SPREAD, _SPREAD, _SPREAD, {"entropy"}, {"collision"})
"""The moments that need each of the sums."""
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
    """Return placeholders of the arguments; None if no filter reads moments."""
    if not variant.moments:
        return None
    moments = [Pointer(torch.float32) if name in variant.moments else None for name in MOMENTS]
    target_rows = Pointer(torch.int64) if variant.draws_drafts else None
    floors = FilterFloors(FLOAT32, FLOAT32, *[ANY_INT] * 3)
    return FloorArguments(MomentResults(*moments, target_rows), lambda: [floors])


class TileLaunches:
    """The launches of a variant, and the scratch of what they leave of tiles and rows."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch) -> None:
        configuration, logits = variant.configuration, variant.logits
        self._has_row_index = variant.param_dtypes[1] is not None
        self.count = tiles_of(variant.vocab_size)
        self.count_limit = power_of_two(self.count, at_least=MIN_TILES)
        """What kernels are compiled for."""
        of_tiles = torch.float32, self.count
        self.maxima, self.sums = scratch.reserve(*of_tiles), scratch.reserve(*of_tiles)
        raw_sums = scratch.reserve(*of_tiles) if variant.has_second_sums else None
        self.mode_sums = self.sums if not variant.has_raw_sums or raw_sums is None else raw_sums
        """The sums by which the logprobs mode normalises, behind all launches of the draw."""
        self.entropy_sums = scratch.reserve(*of_tiles) if variant.has_entropy_sums else None
        self.granules = None
        if variant.has_filters or (variant.has_logprobs and (variant.num_best != 0 or variant.wants_ranks)):
            self.granules = scratch.reserve(logits.dtype, self.count * GRANULES_PER_TILE.value)
        self.statistics = scratch.fields(self.maxima, self.sums, raw_sums, self.granules, self.entropy_sums)
        # The draw gets none of the statistics that only logprobs read: so it is one kernel with them and without.
        granules = self.granules if variant.has_filters else None
        self.weighed = scratch.fields(self.maxima, self.sums, None, granules, None)
        self._sums = scratch.fields(
            *[of_tiles if readers.intersection(variant.moments) else None for readers in _READERS]
        )
        self._floor = scratch.reserve(torch.float32) if variant.moments else 0
        itemsize = logits.dtype.itemsize
        config = TileConfig(
            SPAN=configuration.span(itemsize),
            VECTOR=logits.vector,
            IS_ALIGNED=variant.is_aligned,
            IS_NVIDIA=target.is_nvidia,
            IS_RAW=variant.has_entropy_sums and variant.is_tempered_last and variant.has_raw_sums,
        )
        registers = None
        if variant.has_second_sums and not variant.has_entropy_sums and not variant.moments:
            registers = configuration.raw_registers(itemsize)
        options = target.options(configuration.tile_warps, registers)
        self._pass = Launch(tile_statistics, {"config": config}, options)
        self._row_moments = Launch(row_moments, {"TILES": self.count_limit}, target.options(_WARPS))
        self._combine_floors = Launch(combine_floors, {}, target.options(_WARPS))

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
        index = arguments.params.row_index if self._has_row_index else None
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
        """Return the floors that launches leave."""
        return scratch[self._floor]


# The draw of rows with few tokens.


class RowLaunch:
    """The launch of a variant, and the scratch of what it leaves of rows."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches) -> None:
        configuration, has_filters = variant.configuration, variant.has_filters
        real, whole = torch.float32, torch.int32
        self.candidates: Sequence[int | None] = [None] * 3
        """Indices of the buffers of ``CandidateLists``."""
        if has_filters:
            self.candidates = [
                scratch.reserve(dtype, SMALL_CANDIDATES, PER_ROW) for dtype in (whole, real, whole)
            ]
        self.lists = scratch.fields(*self.candidates)
        self.num_candidates = self.summary = None
        if variant.weighs_kept or variant.interval is not None:  # for a later launch
            self.num_candidates = scratch.reserve(whole)
            self.summary = scratch.fields((real, 1), (real, 1), self.num_candidates)
        left = (self.candidates[1], self.num_candidates) if variant.weighs_kept else (None, None)
        self.row_candidates = scratch.fields(*left)
        """Those that a score reads."""
        config = RowConfig(
            HAS_FILTERS=has_filters,
            FP64=target.fp64,
            TILES=tiles.count_limit,
            VECTOR=variant.logits.vector,
            IS_ALIGNED=variant.is_aligned,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            GRANULES_AT_ONCE=configuration.granules_at_once,
            ULP_STEP=variant.logits.ulp_step,
            BY_FACTORS=target.is_nvidia and configuration.row_registers is None,
            IS_NVIDIA=target.is_nvidia,
        )
        is_plain = not has_filters and variant.verify is None and not variant.draws_logprobs
        warps = configuration.plain_row_warps if is_plain else configuration.row_warps
        options = target.options(warps, configuration.row_registers if has_filters else None)
        self.launch = Launch(draw_rows, {"config": config}, options)


# The draw of rows with large kept sets.


class LargeSetLaunch:
    """The launch of a variant with filters, and its scratch."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches) -> None:
        configuration, real, whole = variant.configuration, torch.float32, torch.int32
        rounds = (whole, QUEUE_COUNTERS.value, PER_CALL), (whole, ROUNDS.value), (whole, 1)
        self.queue = scratch.fields(*rounds)
        self.state = scratch.fields((real, STATE_REALS.value), (whole, STATE_INTS.value))
        searched = (whole, tiles.count_limit, PER_PROGRAM), (real, MAX_COLLECTED.value, PER_PROGRAM)
        self._search = scratch.fields(*searched)
        columns = SLOTS.value * tiles.count * COLUMNS.value
        self._results = scratch.fields((real, columns), (whole, MAX_COLLECTED.value))
        config = LargeSetConfig(
            FP64=target.fp64,
            TILES=tiles.count_limit,
            EXACT_PARTS=configuration.large_set_exact_parts,
            WARPS=configuration.large_set_warps,
            VECTOR=variant.logits.vector,
            IS_ALIGNED=variant.is_aligned,
            ULP_STEP=variant.logits.ulp_step,
            IS_NVIDIA=target.is_nvidia,
        )
        options = target.options(configuration.large_set_warps, configuration.large_set_registers)
        self._launch = Launch(draw_large_sets, {"config": config}, options)

    def step(self, arguments: LaunchArguments, draw: DrawArguments) -> Step:
        """Return the launch: one kernel, with drafts and without, where the target stands in for them."""
        logits, drafts, counts, statistics, _, flags, _, queue, state, results, *_ = draw
        source, scratch = logits if drafts.base is None else drafts, arguments.scratch
        others = group(DraftRows, (source.base, source.row_stride, None))
        search, passes = (
            group(SearchScratch, self._search(scratch)),
            group(PassResults, self._results(scratch)),
        )
        work = search, queue, state, passes, results
        grid = arguments.geometry.large_set_grid
        return self._launch, grid, (logits, others, counts, statistics, flags, *work)


# The launches around a draw whose rows may ask for XTC or the filter order ``temperature_last``: before it one writes
# the temperature and the min-p that filters look at. Launches 1 to 3 find thresholds with these; behind them a launch
# draws the rows that ask, each from the interval that it keeps, at its own temperature.

_TILES_AT_ONCE = 4
_PROGRAMS = 16
"""Programs a multiprocessor, about: a row has parts as long as there are no more."""


class IntervalArguments(NamedTuple):
    """Arguments of the launches."""

    params: IntervalParams
    filter_params: FilterParams
    """To be filled in."""
    ceiling: Any
    """[rows] float32, to be filled in; None without XTC."""
    slots: int

    @classmethod
    def of(cls, tensors: Sequence[Any], slots: int) -> IntervalArguments:
        """Group the arguments for the tensors of :meth:`IntervalLaunches.tensors`."""
        params, written = group(IntervalParams, tensors[:3]), group(FilterParams, tensors[3:6])
        return cls(params, written, tensors[6], slots)


class IntervalLaunches:
    """The launches of a variant, and the scratch for weights of tiles."""

    def __init__(self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches) -> None:
        self._weights = scratch.reserve(torch.float32, tiles.count)
        self._arrivals = scratch.reserve(torch.int32)
        self.log_masses = scratch.reserve(torch.float32) if variant.has_logprobs else None
        """Index of the buffer of :attr:`KeptInterval.log_masses`."""
        self._max_parts, self._programs = -(-tiles.count // _TILES_AT_ONCE), _PROGRAMS * target.processors
        self._params, self._has_ceiling = variant.interval or (), variant.has_ceiling
        self._written: tuple[torch.dtype | None, ...] = (None, None, None)
        """Dtypes of ``FilterParams``."""
        if variant.is_tempered_last:
            temperature, min_p = (
                variant.param_dtypes[FIELDS.index(name)] for name in ("temperature", "min_p")
            )
            self._written = temperature, temperature if variant.has_second_sums else None, min_p
        config = IntervalConfig(
            FP64=target.fp64,
            TILES=tiles.count_limit,
            TILES_AT_ONCE=_TILES_AT_ONCE,
            VECTOR=variant.logits.vector,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_LOGPROBS=variant.has_logprobs,
        )
        self._filter_params = Launch(filter_params, {}, target.options(_WARPS))
        self._redraw = Launch(redraw_rows, {"config": config}, target.options(_WARPS))

    def tensors(self, m: SamplingMetadata, proto: Tensor, rows: int) -> ParamTensors:
        """Return the parameters of a batch, and new tensors for what launches write: by slot, and ceilings by row.

        :param proto: an empty float32 tensor on the device.
        """
        params = interval_params(m)
        slots = 0 if params[0] is None else len(params[0])
        written = [None if dtype is None else proto.new_empty(slots, dtype=dtype) for dtype in self._written]
        return *params, *written, proto.new_empty(rows) if self._has_ceiling else None

    def placeholders(self) -> IntervalArguments:
        """Return placeholders of the arguments."""
        dtypes = (*self._params, *self._written, torch.float32 if self._has_ceiling else None)
        return IntervalArguments.of([any_pointer(dtype) for dtype in dtypes], ANY_INT)

    def filter_step(self, arguments: LaunchArguments) -> Step:
        """Return the launch that fills in the parameters of the filters."""
        interval: IntervalArguments = arguments.interval
        grid = (-(-interval.slots // SLOTS_PER_PROGRAM.value), 1, 1)
        is_last, written = interval.params.temperature_last, interval.filter_params
        groups = arguments.params, is_last, written, interval.slots, arguments.flags
        return self._filter_params, grid, groups

    def results(self, arguments: LaunchArguments) -> KeptInterval:
        """Return the results and the scratch of the last launch; the draw of rows writes ``arrivals``."""
        scratch, log_masses = arguments.scratch, -1 if self.log_masses is None else self.log_masses
        weights, arrivals = scratch[self._weights], scratch[self._arrivals]
        return group(KeptInterval, (arguments.interval.ceiling, weights, arrivals, scratch[log_masses]))

    def redraw_step(
        self, arguments: LaunchArguments, statistics: TileStatistics, draw: DrawArguments, kept: KeptMasses
    ) -> Step:
        """Return the launch that draws the rows again.

        :param kept: masses of the rows that a verification wants, to be filled in.
        """
        number, *_ = arguments.geometry.row_grid
        parts = max(1, min(self._max_parts, self._programs // number))
        of_rows = *draw[:3], statistics, arguments.params, draw.interval_params, draw.flags
        left = draw.lists, draw.summary, draw.results, draw.interval, kept
        return self._redraw, (number, parts, 1), (*of_rows, *left)


def params_of_filters(params: RowParams, written: FilterParams) -> RowParams:
    """Return the parameters of requests with those that the filters look at in their place."""
    temperature = params.temperature if written.temperature is None else written.temperature
    min_p = params.min_p if written.min_p is None else written.min_p
    return params._replace(temperature=temperature, min_p=min_p)


# The launches of a verification behind those of a draw.

PROBS_AT_ONCE = 4096
"""Probabilities a program."""
_ACCEPT_REGISTERS = 128
"""Limit of registers a thread of the launch over the requests, so that its programs fit. NVIDIA."""
_CHECK_WARPS = 4
_NO_DRAFTS = DraftRows()


class VerifyArguments(NamedTuple):
    """Drafts and results of a verification: first the tensors, as kernels are given them."""

    token_ids: Any
    """The fields of :class:`VerifyResults`, to be filled in; the tokens by row if the flags say so."""
    num_accepted: Any
    valid: Any
    row_tokens: Any
    q: Any
    """Logits or probabilities of drafts, or None."""
    draft_ids: Any
    cu_num_logits: Any
    least_kept: Any
    """[target rows] float32, to be filled in, or None."""
    q_stride: int | None = None
    num_ids: int = 1
    """Number of ids of drafts, in a row if padded."""


class VerifiedRows(NamedTuple):
    """What a verification gives the draw of its rows, and reads afterwards."""

    drafts: DraftRows = DraftRows()
    summary: RowSummary = RowSummary()
    kept: KeptMasses = KeptMasses()
    """Of a verification by probabilities whose rows may keep intervals."""
    residual: Any = (None, None)
    """:class:`ResidualScratch`, whose counters the draw sets to 0."""


class VerifyLaunches:
    """The launches of a variant, and the scratch of what the draw leaves to them."""

    def __init__(
        self, variant: Variant, target: Target, scratch: Scratch, tiles: TileLaunches, rows: RowLaunch
    ) -> None:
        verify, real, whole = variant.verify, torch.float32, torch.int32
        assert verify is not None  # the variant is of a verification
        is_coupled = verify.draft_kind == COUPLED
        self._draft_kind, self._is_padded = verify.draft_kind, int(verify.is_padded)
        tokens, valid = scratch.reserve(torch.int64), scratch.reserve(torch.bool)
        maxima = masses = num_candidates = counters = weights = None
        self.bounds: Sequence[Any] = (None, None)
        """Indices of the buffers of thresholds and kept masses."""
        if not is_coupled or variant.needs_thresholds:
            self.bounds = scratch.reserve(real), scratch.reserve(real)
        log_shares, kept = self.bounds[1], list[int | None]([None] * 3)
        if not is_coupled:
            maxima, masses, counters = scratch.reserve(real), scratch.reserve(real), scratch.reserve(whole)
            weights = scratch.reserve(real, 2 * tiles.count, PER_ROW if verify.is_block else PER_REQUEST)
            if variant.interval is not None:
                # The draw's summary is of rows before XTC, and the last launch reads the kept masses.
                num_candidates, log_shares = rows.num_candidates, scratch.reserve(real)
                kept = [maxima, masses, log_shares]
            elif variant.has_filters:
                num_candidates = scratch.reserve(whole)
        self._results = scratch.fields(tokens, valid, *self.bounds, None)
        bounds = (None, None) if is_coupled else (self.bounds[0], log_shares)
        self._judged = scratch.fields(tokens, valid, *bounds, None)
        self._summary = scratch.fields(maxima, masses, num_candidates)
        self._kept = scratch.fields(*kept)
        self._lists = scratch.fields(None, *rows.candidates[1:])
        self._residual = scratch.fields(counters, weights)
        config = AcceptConfig(
            DRAFT_KIND=verify.draft_kind,
            IS_BLOCK=verify.is_block,
            STEPS=verify.max_steps,
            FP64=target.fp64,
            TILES=tiles.count_limit,
            SMALL_CANDIDATES=SMALL_CANDIDATES,
            HAS_FILTERS=variant.has_filters,
            HAS_CEILING=variant.has_ceiling,
            WARPS=ACCEPT_WARPS,
            VECTOR=variant.logits.vector,
            IS_NVIDIA=target.is_nvidia,
        )
        options = target.options(ACCEPT_WARPS, _ACCEPT_REGISTERS)
        self._weigh_blocks = Launch(weigh_blocks, {"config": config}, options) if verify.is_block else None
        self._accept_drafts = Launch(accept_drafts, {"config": config}, options)
        self._check_probs = Launch(check_probs, {"AT_ONCE": PROBS_AT_ONCE}, {"num_warps": _CHECK_WARPS})

    def drawn(
        self, arguments: LaunchArguments, verified: VerifyArguments
    ) -> tuple[Sequence[Any], VerifiedRows]:
        """Return where the draw leaves its results, and what else it is given."""
        scratch, drafts = arguments.scratch, _NO_DRAFTS
        if self._draft_kind == LOGITS:
            drafts = group(DraftRows, (verified.q, verified.q_stride, verified.cu_num_logits))
        *results, _ = self._results(scratch)
        summary, kept = group(RowSummary, self._summary(scratch)), group(KeptMasses, self._kept(scratch))
        residual = group(ResidualScratch, self._residual(scratch))
        return (*results, verified.least_kept), group(VerifiedRows, (drafts, summary, kept, residual))

    def steps(
        self, arguments: LaunchArguments, verified: VerifyArguments, of_rows: VerifiedRows
    ) -> Iterator[Step]:
        """Yield the launches, behind those of the draw."""
        geometry, logits, params, flags, scratch, *_ = arguments
        q, draft_ids, cu_num_logits, _, q_stride, num_ids = verified[4:]
        _, summary, _, residual = of_rows
        if self._draft_kind == PROBS:
            grid = geometry.size.draft_rows, -(-logits.vocab_size // PROBS_AT_ONCE), 1
            of_probs = q, q_stride, logits.vocab_size, residual.counters, geometry.size.requests
            yield self._check_probs, grid, of_probs
        drafts = group(DraftRows, (q, q_stride, cu_num_logits))
        tokens = group(DraftTokens, (draft_ids, num_ids, self._is_padded, logits.vocab_size - 1))
        judged, lists = group(DrawResults, self._judged(scratch)), group(CandidateLists, self._lists(scratch))
        drawn = judged, summary, lists, residual
        shared = (logits, drafts, tokens, geometry.counts, params, flags, *drawn)
        if self._weigh_blocks is not None:
            yield self._weigh_blocks, geometry.block_grid, shared
        yield self._accept_drafts, geometry.request_grid, (*shared, group(VerifyResults, verified[:4]))


# Log-probabilities of the drawn token and of more best tokens than a kernel can order, by ``torch.topk``.

_LOGITS_AT_ONCE = 1 << 23
"""Upper limit of logits that PyTorch gets at once: 40 bytes of scratch each, as measured on a CPU."""
_INF = float("inf")
_LARGEST = torch.finfo(torch.float32).max


def topk_logprobs(
    logits: Tensor, m: SamplingMetadata, draws: RowDraws, mode: LogprobsMode, out: BestTokens
) -> None:
    """Fill in ids and values [rows, 1 + N] of logits [rows, V] for any N, some rows at a time. Waits for nothing.

    :param draws: the tensors of the draw; its maxima and sums [rows, tiles] are those of the mode.
    """
    logits = logits.detach()
    rows, num_best = logits.shape[0], out.ids.shape[1] - 1
    temperatures, requested = m.per_row("temperature"), m.per_row("logprobs")
    if temperatures is None or mode.startswith("raw"):
        temperatures = torch.ones(rows, dtype=torch.float64, device=logits.device)
    every_id = torch.arange(logits.shape[1], device=logits.device)
    step = max(1, _LOGITS_AT_ONCE // logits.shape[1])  # few enough rows to be ordered at once
    for start in range(0, rows, step):
        part = slice(start, start + step)
        # Nothing is read at what a failed draw left.
        token = draws.token_ids[part, None].clamp(0, logits.shape[1] - 1)
        temperature = temperatures[part, None].to(torch.float64)
        is_greedy = ~(temperature > 0)
        temperature = torch.where(is_greedy, 1.0, temperature)
        inverse = temperature.clamp(max=1.7e308).reciprocal().clamp(max=1.7e308)
        max_logit = peak = draws.maxima[part].amax(-1, keepdim=True)
        if draws.ceiling is not None:
            peak = torch.fmin(max_logit, draws.ceiling[part, None])
        lowest = torch.full_like(max_logit, -_INF)
        if mode != "raw_logits":  # what float32 shows as -inf is -inf to the order, too
            lowest = (peak - _LARGEST * temperature).to(torch.float32)
        if mode.startswith("processed"):
            lowest = torch.maximum(lowest, draws.threshold[part, None])
        x = logits[part].to(torch.float32, copy=True)
        x.nan_to_num_(nan=-_INF, posinf=_INF, neginf=-_INF)
        # Hidden are logits below ``lowest`` and, in greedy rows, all but the drawn token.
        x = torch.where((x >= lowest) & (~is_greedy | (every_id == token)), x, -_INF)
        columns = torch.cat((token, best_token_ids(x, num_best)), -1)
        x = x.gather(-1, columns)
        if mode != "raw_logits":
            y = _scaled(x, peak, inverse)
            if mode.endswith("logprobs"):
                weights = draws.sums[part].abs() * _scaled(draws.maxima[part], max_logit, inverse).exp()
                log_mass = weights.sum(-1, keepdim=True).log()
                if mode == "processed_logprobs":
                    log_mass += draws.log_kept[part, None]
                if draws.log_masses is not None:
                    log_mass = torch.where(peak < max_logit, draws.log_masses[part, None], log_mass)
                y -= log_mass
            y.clamp_(max=0.0)  # rounded sums may leave more
            x = torch.where(is_greedy & (columns == token), 0.0, y)
        x = torch.where(max_logit > -_INF, x, -_INF)
        asked = None if requested is None else requested[part]
        out.ids[part], out.logprobs[part] = pad_logprobs(columns, x, asked)


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

    def config(self, tiles: TileLaunches, vector: int, num_best: int) -> LogprobsConfig:
        """Return the constants of the kernel."""
        is_sorted = self.granules_at_once > 0
        # Maxima of fewer than 2 N tiles say little about the N-th value.
        maxima, granules = (_QUARTERS if tiles.count < 2 * num_best else 0), 4
        if is_sorted:
            maxima, granules = _MAXIMA, tiles.count_limit * GRANULES_PER_TILE.value // _MAXIMA
        return LogprobsConfig(
            VECTOR=vector,
            TILES=tiles.count_limit,
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


class ShownTokens(NamedTuple):
    """Arguments for the logprobs of a call's tokens: first the tensors, as kernels get them, None if not wanted."""

    requested: Any
    """[slots]: how many of the N; None: all N."""
    token_ids: Any
    """[rows] int64: the tokens, drawn or given to be scored."""
    ranks: Any
    """[rows] int64, to be filled in; of scored tokens 0."""
    ids: Any
    """[rows, 1 + N], to be filled in, like ``logprobs``."""
    logprobs: Any
    given: Any
    """The fields of :class:`GivenIds`, of which two stand last; ids and logprobs [rows, M] are to be filled in."""
    given_ids: Any
    given_logprobs: Any
    entropy: Any
    """[rows] float32 of scored tokens, to be filled in."""
    given_stride: Any = 0
    num_given: Any = 0
    complete: Callable[[], None] | None = None
    """Does in torch what kernels do not, behind the launches but for that of scores."""


class LogprobsLaunches:
    """The launches for the logprobs of a variant, and the scratch between launches."""

    def __init__(
        self,
        variant: Variant,
        mode: LogprobsMode,
        scratch: Scratch,
        tiles: TileLaunches,
        row_candidates: Callable[[Sequence[Any]], Any],
        log_masses: int | None,
    ) -> None:
        """Reserve scratch and configure the kernels.

        :param row_candidates: returns the fields of ``RowCandidates``, which the draw leaves if scores read any.
        :param log_masses: index of the buffer of kept masses of rows that may keep intervals.
        """
        self._tiles, self._variant, self._flags = tiles, variant, mode_flags(mode)
        self._row_candidates = row_candidates
        self.mode, self.num_best = mode, variant.num_best or 0
        self.is_masked = variant.has_ceiling and mode.startswith("processed")
        """Whether the logits shown are others than those that the pass has read."""
        self.log_masses = log_masses if self.is_masked and mode == "processed_logprobs" else None
        """The index, if the values are shares of what is kept below a ceiling."""
        self.counts_ranks = variant.wants_ranks and (self.is_masked or not variant.is_scored)
        """Whether a launch counts ranks. Those of scored tokens come with the first pass, which knows no ceiling."""
        self.by_kernel = self.num_best <= (0 if self.is_masked else MOST_LOGPROBS)
        """Whether the kernel orders the best tokens."""
        # The draw writes the logprob of the drawn token where no more is wanted, and a score that of its own.
        is_alone = variant.draws_logprobs or (variant.is_scored and self.num_best == 0)
        self._is_searched = self.by_kernel and not is_alone
        search = next((search for search in SEARCHES if self.num_best <= search.width), SEARCHES[-1])
        config = search.config(tiles, variant.logits.vector, self.num_best)
        is_searched = self.num_best > 0 and self.by_kernel
        granules = tiles.count * GRANULES_PER_TILE.value if is_searched else 0
        candidates = search.candidates if is_searched else 0
        self._scratch = scratch.fields(
            (torch.int32, granules),
            (torch.int32 if config.IS_SORTED else torch.int64, candidates),
        )
        ranking = {"SPAN": RANK_SPAN, "VECTOR": variant.logits.vector}
        self._count_ranks = Launch(count_ranks, ranking, _OPTIONS)
        self._search = Launch(row_logprobs, {"config": config}, {"num_warps": search.warps})
        self._score = Launch(
            score_rows,
            {"AT_ONCE": _SCORED_TILES, "CANDIDATES": SMALL_CANDIDATES, "TILES": config.TILES},
            {"num_warps": 4 if variant.has_entropy_sums else _SCORED_TILES},
        )
        self._given = Launch(given_logprobs, {"IDS": _IDS_AT_ONCE, "TILES": config.TILES}, _OPTIONS)

    def steps(self, arguments: LaunchArguments, results: Sequence[Any], shown: ShownTokens) -> Iterator[Step]:
        """Yield the launches, behind those of the draw, whose results are given."""
        geometry, logits, params, _, scratch, _, interval = arguments
        tiles, variant, rows = self._tiles, self._variant, geometry.size.rows
        statistics = group(TileStatistics, tiles.statistics(scratch))
        maxima, granules = statistics.maxima, statistics.granules
        ceiling = None if interval is None else interval.ceiling
        requested = group(RequestedLogprobs, (*tiles.slots(params), shown.requested))
        kept = (None, None) if self.log_masses is None else (ceiling, scratch[self.log_masses])
        token_ids, _, threshold, log_kept, least_kept = results
        of_rows = token_ids, maxima, scratch[tiles.mode_sums], threshold, log_kept
        draws, best = group(RowDraws, (*of_rows, *kept)), group(BestTokens, shown[3:5])
        if self.counts_ranks:
            below = ceiling if self.is_masked else None
            ranked = shown.token_ids, maxima, granules, below, shown.ranks
            grid = rows * -(-tiles.count // RANK_SPAN), 1, 1
            yield self._count_ranks, grid, (logits, tiles.count, rows, requested, *ranked, self._flags)
        if shown.num_given:
            given = group(GivenIds, (shown.given, shown.given_stride, shown.num_given))
            out = group(BestTokens, shown[6:8])
            grid = rows, -(-shown.num_given // _IDS_AT_ONCE), 1
            yield self._given, grid, (logits, tiles.count, requested, draws, given, out, self._flags)
        if self._is_searched:
            work = group(LogprobScratch, self._scratch(scratch))
            # Without best tokens no granule is read, so the maxima stand in.
            found = maxima if granules is None else granules, work, best, self._flags
            of_row = logits, tiles.count, self.num_best, requested, draws
            yield self._search, (rows, 1, 1), (*of_row, *found)
        if shown.complete is not None:
            shown.complete()
        if variant.is_scored:
            candidates = group(RowCandidates, self._row_candidates(scratch))
            bound = None if variant.is_drawn else least_kept
            scores = group(Scores, (*best, shown.ranks, shown.entropy, bound))
            of_draw = shown.token_ids, statistics.entropy_sums, candidates, ceiling, 1 + self.num_best
            scored = logits, tiles.count, requested, draws, *of_draw
            yield self._score, (rows, 1, 1), (*scored, scores, self._flags)


def mode_flags(mode: LogprobsMode) -> int:
    """Return the steps of a mode as bits for the kernels."""
    flags: int = 0 if mode == "raw_logits" else SCALED.value
    flags += NORMALISED.value if mode.endswith("logprobs") else 0
    flags += 0 if mode.startswith("raw") else TEMPERED.value
    return flags + (PROCESSED.value if mode.startswith("processed") else 0)
