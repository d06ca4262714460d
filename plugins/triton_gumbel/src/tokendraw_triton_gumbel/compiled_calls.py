"""The launches of a kind of call, compiled once, and the arguments that each call gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from tokendraw import BatchFacts, LogprobsTensors, Need, SamplingMetadata
from tokendraw.plugin import LogprobsMode
from tokendraw_triton_gumbel import plan
from tokendraw_triton_gumbel.compilation import ANY_INT, ANY_STRIDE, INT64, Pointer, any_pointer
from tokendraw_triton_gumbel.kernels import rows as row_params
from tokendraw_triton_gumbel.kernels.interval import (
    IntervalArguments,
    IntervalLaunches,
    IntervalParams,
    KeptInterval,
    params_of_filters,
)
from tokendraw_triton_gumbel.kernels.large_set import LargeSetLaunch
from tokendraw_triton_gumbel.kernels.large_set_passes import RowState, WorkQueue
from tokendraw_triton_gumbel.kernels.logprobs import (
    BestTokens,
    LogprobsLaunches,
    RowDraws,
    ShownTokens,
    mode_flags,
    topk_logprobs,
)
from tokendraw_triton_gumbel.kernels.row_draw import RowLaunch, TokenLogprobs
from tokendraw_triton_gumbel.kernels.rows import (
    LOGITS,
    CandidateLists,
    Counts,
    DrawResults,
    Logits,
    RowSummary,
    TileStatistics,
)
from tokendraw_triton_gumbel.kernels.tile_pass import (
    RankedTokens,
    TileLaunches,
    floor_arguments,
    floor_placeholders,
)
from tokendraw_triton_gumbel.kernels.verify import VerifiedRows, VerifyArguments, VerifyLaunches
from tokendraw_triton_gumbel.launch import (
    AddressConverter,
    DrawArguments,
    LaunchArguments,
    Step,
    compile_steps,
    current_stream,
    group,
)
from tokendraw_triton_gumbel.plan import (
    SMALL_BATCH_ROWS,
    BoundedCache,
    CallSize,
    Configuration,
    Geometry,
    ParamsLayout,
    ParamTensors,
    RowAccess,
    Scratch,
    Target,
    Variant,
    VerifyVariant,
    contiguous_params,
    param_tensors,
    params_layout,
    rows_are_contiguous,
    with_unit_stride,
)

# The launches of a variant in their order, compiled, with their scratch, and the geometry of each batch size.
#
# The rows of drafts whose logits are known follow the rows of the target in all launches of a draw.

_NO_WORK = CandidateLists(), WorkQueue(), RowState()
_NO_INTERVAL = IntervalParams(), KeptInterval()
_NO_RANKS, _NOT_SHOWN, _NOT_VERIFIED = RankedTokens(), (None, None, None), VerifiedRows()
_ROW_STEP = 8
"""Scratch is laid out for a multiple of so many rows or requests, so that most new sizes find it laid out already."""


class CompiledCall:
    """The launches of a variant. It holds no tensor of any call, so that threads share it."""

    def __init__(self, variant: Variant, target: Target, mode: LogprobsMode, device: torch.device) -> None:
        self.variant = variant
        self._max_programs = variant.configuration.large_set_programs * target.processors
        self.device = -1 if device.type == "cpu" else device.index
        self.int64_proto, self.float32_proto, self.bool_proto, self.uint8_proto = (
            torch.empty(0, dtype=dtype, device=device)
            for dtype in (torch.int64, torch.float32, torch.bool, torch.uint8)
        )
        """Prototypes of new tensors: ``new_empty`` need not look at a dtype and a device each time."""
        self.scratch = Scratch()
        self.tiles = TileLaunches(variant, target, self.scratch)
        of_draw = variant, target, self.scratch, self.tiles
        self._rows = RowLaunch(*of_draw)
        self._large_sets = LargeSetLaunch(*of_draw) if variant.params.has_filters else None
        self.interval = IntervalLaunches(*of_draw) if variant.params.interval is not None else None
        self.verify = VerifyLaunches(*of_draw, self._rows) if variant.verify is not None else None
        self.logprobs = None
        if variant.has_logprobs:
            log_masses = None if self.interval is None else self.interval.log_masses
            self.logprobs = LogprobsLaunches(
                variant, mode, self.scratch, self.tiles, self._rows.row_candidates, log_masses
            )
        self.moments = variant.params.moments
        self.needs_thresholds, self._is_drawn = variant.needs_thresholds, variant.is_drawn
        counts_ranks = self.logprobs is not None and self.logprobs.counts_ranks
        self._ranks_in_pass = variant.is_scored and variant.wants_ranks and not counts_ranks
        self.flags = plan.presence_flags(variant.params.dtypes, has_fresh_seeds=variant.has_fresh_seeds)
        """Flags of every launch, as bits of :mod:`.kernels.rows`."""
        for flag, is_set in (
            (row_params.EXACT, variant.is_exact),
            (row_params.ROW_EXACT, variant.params.interval is not None),
            (row_params.MANY_EXACT, variant.is_tempered_last),
            (row_params.LEAST_KEPT, variant.wants_least_kept),
            (row_params.HAS_FLOOR, variant.params.moments != ()),
            (row_params.RANKED, counts_ranks and not variant.is_scored),
            (row_params.SHOWN, variant.has_logprobs and variant.verify is not None),
            (row_params.OWN, variant.draws_logprobs),
        ):
            self.flags += flag.value if is_set else 0
        self.flags += mode_flags(mode) if variant.draws_logprobs else 0
        self.placeholders = plan.param_placeholders(variant.params.dtypes)
        compile_steps(self._placeholder_steps())

    def geometry(self, size: tuple[int, int, int, int]) -> Geometry:
        """Compute the grids and the scratch layout of a size."""
        rows, requests, draft_rows, max_drafts = size
        drawn = places = rows
        if self.variant.draws_drafts:
            drawn += draft_rows
            places = max(drawn, rows + requests * max_drafts)  # one for each draft that a request may have
        tiles, max_programs = self.tiles.count, self._max_programs
        scratch_rows, scratch_requests = (-(-count // _ROW_STEP) * _ROW_STEP for count in (drawn, requests))
        scratch_counts = 1, scratch_rows, scratch_requests, min(scratch_rows * tiles, max_programs)
        return Geometry(
            CallSize(*size),
            Counts(drawn, rows, tiles, max_drafts, requests),
            scratch_counts,
            self.scratch.offsets(scratch_counts),
            tile_grid=self.tiles.grid(places),
            row_grid=(places, 1, 1),
            large_set_grid=(min(drawn * tiles, max_programs), 1, 1),
            verify_grids=() if self.verify is None else self.verify.grids(CallSize(*size)),
        )

    def steps(
        self,
        arguments: LaunchArguments,
        results: Sequence[Any],
        shown: ShownTokens | None = None,
        verified: VerifyArguments | None = None,
    ) -> Iterable[Step]:
        """Return all launches of a call.

        :param results: the fields of ``DrawResults``, to be filled in; of a verification they are in ``verified``.
        :param shown: the tokens whose logprobs are wanted; None: no row wants any.
        """
        if self.verify is not None and verified is not None:
            results, of_rows = self.verify.drawn(arguments, verified)
            ranks = None if shown is None else shown.ranks
            draw = self._draw_steps(arguments, results, (ranks, None, None), verified=of_rows)
            steps: Iterable[Step] = chain(draw, self.verify.steps(arguments, verified, of_rows))
            results = verified.row_tokens, *results[1:]
        elif shown is None:
            return self._draw_steps(arguments, results)
        elif self.variant.is_scored:
            ranked = (shown.token_ids, shown.ranks) if self._ranks_in_pass else (None, None)
            steps = self._draw_steps(arguments, results, ranked=group(RankedTokens, ranked))
        else:
            best = (shown.ids, shown.logprobs) if self.variant.draws_logprobs else (None, None)
            steps = self._draw_steps(arguments, results, (shown.ranks, *best))
        if self.logprobs is None or shown is None:
            return steps
        return chain(steps, self.logprobs.steps(arguments, results, shown))

    def _draw_steps(
        self,
        arguments: LaunchArguments,
        results: Sequence[Any],
        shown: tuple[Any, Any, Any] = _NOT_SHOWN,
        *,
        ranked: RankedTokens = _NO_RANKS,
        verified: VerifiedRows = _NOT_VERIFIED,
    ) -> Iterator[Step]:
        """Yield the launches over the tiles of all rows, over the rows, and over rows with large kept sets.

        :param shown: ranks, set to 0; ids and logprobs of the drawn tokens, or None.
        :param ranked: tokens to be scored, whose ranks are counted.
        """
        geometry, logits, params, flags, scratch, floors, interval = arguments
        drafts, summary, kept_masses, (counters, _) = verified
        tiles, large_sets, intervals = self.tiles, self._large_sets, self.interval
        rows = logits, drafts, geometry.counts
        statistics = group(TileStatistics, tiles.statistics(scratch))
        lists, queue, state = _NO_WORK
        if large_sets is not None:
            lists = group(CandidateLists, self._rows.lists(scratch))
            queue = group(WorkQueue, large_sets.queue(scratch))
            state = group(RowState, large_sets.state(scratch))
        if self._rows.summary is not None:
            summary = group(RowSummary, self._rows.summary(scratch))
        raw_temperature, of_interval = None, _NO_INTERVAL
        if interval is not None and intervals is not None:
            of_interval = interval.params, intervals.results(arguments)
            if interval.params.temperature_last is not None:
                yield intervals.filter_step(arguments)
                params = params_of_filters(params, interval.filter_params)
                raw_temperature = interval.filter_params.other_temperature
        temperatures, cleared = (params.temperature, raw_temperature), (queue, counters)
        yield tiles.step(arguments, rows, statistics, temperatures, ranked, cleared)
        if not self._is_drawn:
            return
        if floors is not None:
            yield from tiles.floor_steps(arguments, params, drafts)
            params = params._replace(floor=tiles.floor(scratch))
        # An output that is not wanted is not written, so another tensor of its dtype stands in.
        token_ids, valid, threshold, log_kept, least_kept = results
        maxima, sums, raw_sums, _, _ = statistics
        bounds = (maxima, maxima) if threshold is None else (threshold, log_kept)
        out = group(DrawResults, (token_ids, valid, *bounds, maxima if least_kept is None else least_kept))
        ranks, ids, logprobs = shown
        of_tokens = (
            token_ids if ranks is None else ranks,
            sums if raw_sums is None else raw_sums,
            token_ids if ids is None else ids,
            maxima if logprobs is None else logprobs,
        )
        weighed, described = group(TileStatistics, tiles.weighed(scratch)), group(TokenLogprobs, of_tokens)
        work = lists, queue, state, out, summary, described
        draw = group(DrawArguments, (*rows, weighed, params, flags, *work, *of_interval))
        yield self._rows.launch, geometry.row_grid, draw
        if large_sets is not None:
            yield large_sets.step(arguments, draw)
        if intervals is not None:
            yield intervals.redraw_step(arguments, statistics, draw, kept_masses)

    def _placeholder_steps(self) -> Iterable[Step]:
        """Return the launches of a call of some size, with placeholders for tensors."""
        variant, verify, shown, verified = self.variant, self.variant.verify, None, None
        int64, int32, float32, boolean = (
            Pointer(dtype) for dtype in (torch.int64, torch.int32, torch.float32, torch.bool)
        )
        arguments = LaunchArguments(
            self.geometry((1, 0, 0, 0) if verify is None else (2, 1, 1, 1)),
            Logits(variant.logits.pointer, variant.logits.stride, variant.vocab_size),
            self.placeholders,
            0,
            self.scratch.placeholders(),
            floor_placeholders(variant),
            None if self.interval is None else self.interval.placeholders(),
        )
        bounds = (float32, float32) if self.needs_thresholds else (None, None)
        least_kept = float32 if variant.wants_least_kept else None
        if self.logprobs is not None:
            requested, given = any_pointer(variant.params.dtypes[-1]), any_pointer(variant.params.given_dtype)
            out = int64 if variant.wants_ranks else None, int64, float32, given, int64, float32, float32
            shown = ShownTokens(requested, INT64, *out, ANY_STRIDE, 0 if given is None else ANY_INT)
        if verify is not None:
            q, stride = (None, None) if verify.q is None else (verify.q.pointer, verify.q.stride)
            ids, offsets = any_pointer(verify.id_dtype), any_pointer(verify.offset_dtype)
            verified = VerifyArguments(
                int64, int32, boolean, int64, q, ids, offsets, least_kept, stride, num_ids=1
            )
        return self.steps(arguments, (int64, boolean, *bounds, least_kept), shown, verified)


# The context of a call: scratch, fresh seeds, arguments, and the stream of the launches.


class LaunchContext:
    """Scratch and arguments of a call. Only returned tensors outlive the call."""

    __slots__ = (
        *("_call", "_given", "_interval", "_logits", "_memory", "_params", "_seed_stream", "_seeds"),
        *("_stream", "arguments", "ceiling", "convert"),
    )

    def __init__(
        self,
        call: CompiledCall,
        geometry: Geometry,
        logits: Tensor,
        m: SamplingMetadata,
        params: ParamTensors,
        converter: AddressConverter,
        flags: int = 0,
    ) -> None:
        """Allocate scratch, and draw fresh seeds from torch's generator where a row may need one."""
        # Tensors whose addresses kernels are given have to live until they are launched.
        variant = call.variant
        self._seeds = call.int64_proto.new_empty(geometry.size.rows) if variant.has_fresh_seeds else None
        self._seed_stream = None if self._seeds is None else _fill_seeds(self._seeds)
        self._memory = call.uint8_proto.new_empty(geometry.scratch_offsets[-1])
        self._call, self._logits, self._params = call, logits, params
        self._stream = current_stream(call.device)
        self.convert = converter.tensors
        """Returns the arguments for tensors, and None for None."""
        floors = interval = self.ceiling = None
        if call.moments:
            # A row of drafts that no request has is never drawn, and takes the values of the first row.
            number = geometry.counts.rows
            target_rows = call.int64_proto.new_zeros(number) if variant.draws_drafts else None
            moments = call.float32_proto.new_empty(len(call.moments), number)
            floors = floor_arguments(m, call.moments, moments, target_rows, self.convert)
        if call.interval is not None:
            self._interval = call.interval.tensors(m, call.float32_proto, geometry.size.rows)
            is_last, self.ceiling = self._interval[0], self._interval[-1]
            slots = 0 if is_last is None else len(is_last)
            interval = IntervalArguments.of(self.convert(self._interval), slots)
        head = group(Logits, (converter.tensor(logits), logits.stride(0), variant.vocab_size))
        of_rows = converter.params(params, self._seeds, call.placeholders)
        buffers = converter.scratch(call.scratch, self._memory, geometry)
        self.arguments: LaunchArguments = group(
            LaunchArguments, (geometry, head, of_rows, call.flags | flags, buffers, floors, interval)
        )

    def launch(self, steps: Iterable[Step]) -> None:
        """Launch kernels in order; all but the first wait for fresh seeds."""
        for launch, grid, arguments in steps:
            launch(grid, arguments, self._stream)
            if self._seed_stream is not None:
                torch.cuda.current_stream(self._logits.device).wait_stream(self._seed_stream)
                self._seed_stream = None

    def new_results(self, rows: int) -> DrawResults:
        """Return new tensors for the results of a draw, as far as they are wanted."""
        call, threshold, log_kept, least_kept = self._call, None, None, None
        if call.needs_thresholds:
            new = call.float32_proto.new_empty
            threshold, log_kept = new(rows), new(rows)
            least_kept = new(rows) if call.variant.wants_least_kept else None
        token_ids, valid = call.int64_proto.new_empty(rows), call.bool_proto.new_empty(rows)
        return group(DrawResults, (token_ids, valid, threshold, log_kept, least_kept))

    def show(
        self, m: SamplingMetadata, results: DrawResults, token_ids: Tensor, entropy: Tensor | None = None
    ) -> tuple[LogprobsTensors, ShownTokens]:
        """Return new tensors for the logprobs of tokens [rows] int64, and the arguments of the launches for them.

        :param results: the tensors of the draw.
        :param entropy: of tokens that are scored: [rows] float32, to be filled in.
        """
        logprobs, variant, rows = self._call.logprobs, self._call.variant, len(token_ids)
        assert logprobs is not None  # a batch without logprobs has none to fill in
        new_ids, new_values = self._call.int64_proto.new_empty, self._call.float32_proto.new_empty
        ranks = given_ids = given_logprobs = complete = None
        if variant.wants_ranks:
            # Scored tokens' ranks are counted up from 0 by the first pass; a launch sets those of drawn ones.
            ranks = self._call.int64_proto.new_zeros(rows) if variant.is_scored else new_ids(rows)
        width, ids, stride, count = 1 + logprobs.num_best, m.given_ids, 0, 0
        if ids is not None:
            ids = self._given = with_unit_stride(ids)
            stride, count = ids.stride(0), ids.shape[1]
            given_ids, given_logprobs = new_ids(rows, count), new_values(rows, count)
        out = LogprobsTensors(new_ids(rows, width), new_values(rows, width), ranks, given_ids, given_logprobs)
        if logprobs.is_masked or not logprobs.by_kernel:
            complete = partial(self._complete, m, results, out)
        tensors = self._params[-1], token_ids, ranks, out.token_ids, out.logprobs
        converted = self.convert((*tensors, ids, given_ids, given_logprobs, entropy))
        return out, group(ShownTokens, (*converted, stride, count, complete))

    def _complete(self, m: SamplingMetadata, results: DrawResults, out: LogprobsTensors) -> None:
        """Hide given ids above a ceiling, and order more best tokens than a kernel does."""
        logprobs, tiles, logits = self._call.logprobs, self._call.tiles, self._logits
        assert logprobs is not None  # or there is nothing to complete
        kept: tuple[Tensor | None, Tensor | None] = None, None
        if logprobs.is_masked and self.ceiling is not None:
            ceiling = self.ceiling.unsqueeze(-1)
            if out.given_token_ids is not None and out.given_logprobs is not None:
                ids = out.given_token_ids.clamp(0, logits.shape[-1] - 1)  # id -1 is none
                out.given_logprobs.masked_fill_(logits.gather(-1, ids) > ceiling, -torch.inf)
            if not logprobs.by_kernel:
                logits = logits.masked_fill(logits > ceiling, -torch.inf)
            if logprobs.log_masses is not None:
                kept = self.ceiling, self.row_buffer(logprobs.log_masses)
        if logprobs.by_kernel:
            return
        maxima, sums = (self.row_buffer(index, tiles.count) for index in (tiles.maxima, tiles.mode_sums))
        draws = RowDraws(results.token_ids, maxima, sums, results.threshold, results.log_kept, *kept)
        topk_logprobs(logits, m, draws, logprobs.mode, BestTokens(out.token_ids, out.logprobs))

    def row_buffer(self, index: int, *shape: int) -> Tensor:
        """Return the rows of the target, or of the logits, in a scratch buffer: [rows, ...]."""
        geometry = self.arguments.geometry
        rows, offset = geometry.size.rows, geometry.scratch_offsets[index]
        return self._call.scratch.buffer(index, self._memory, offset, rows).view(rows, *shape)


def _fill_seeds(seeds: Tensor) -> torch.cuda.Stream | None:
    """Draw seeds [rows] int64 from torch's generator; return the side stream of a CUDA graph, or None.

    In the graph of a small batch it is a branch, so that the first launch need not wait for it: faster up to 128 rows,
    slower from 256 on. ``HISTORY.md`` of the plugin has the times.
    """
    is_branch = seeds.is_cuda and torch.version.hip is None and len(seeds) <= SMALL_BATCH_ROWS
    if not (is_branch and torch.cuda.is_current_stream_capturing()):
        seeds.random_(-(2**63), None)
        return None
    stream = torch.cuda.Stream(seeds.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(seeds.device))
    with torch.cuda.stream(stream):
        seeds.random_(-(2**63), None)
    return stream


# The compiled calls of a sampler, by variant, and their geometry, by batch size.

_MAX_CALLS, _MAX_SIZES = 256, 2048
"""Upper limits of cached variants, and of cached batch sizes of all variants."""
SCORE: Literal["score"] = "score"
SAMPLED_SCORE: Literal["sampled score"] = "sampled score"
"""Kinds of calls that score given tokens: where a row may be greedy, and where none is."""
RowKind = Literal["score", "sampled score"] | None
CallKind = VerifyVariant | RowKind
CallKey = tuple[object, ...]


def logits_key(logits: Tensor) -> tuple[object, ...]:
    """Return the part of a cache key that depends on logits, without the number of rows."""
    vocab_size, alignment, device = logits.shape[1], logits.data_ptr() % 16, logits.get_device()
    return vocab_size, logits.stride(), logits.dtype, alignment, device, plan.current_override()


class CallCache:
    """The compiled calls of a sampler.

    Their keys are types, strides and alignment of the tensors of a batch and which parameters it has. Values and
    addresses are no part of a key, so tensors may change in place or be replaced.
    """

    def __init__(self, need: Need, target: Target, converter: AddressConverter) -> None:
        self._need, self.target, self._converter = need, target, converter
        self.by_variant: BoundedCache[CallKey, CompiledCall] = BoundedCache(_MAX_CALLS)
        self.by_size: BoundedCache[CallKey, tuple[CompiledCall, Geometry]] = BoundedCache(_MAX_SIZES)
        """By (numbers of ``CallSize``, :data:`CallKind`, ``logits_key``, ``ParamsLayout``, True)."""

    def context(
        self,
        logits: Tensor,
        m: SamplingMetadata,
        kind: CallKind,
        size: tuple[int, int, int, int],
        flags: int = 0,
    ) -> tuple[CompiledCall, LaunchContext]:
        """Return the compiled call of a batch, and its context."""
        params = param_tensors(m)
        key = size, kind, logits_key(logits), params_layout(m), rows_are_contiguous(m)
        cached = self.by_size.get(key)
        if cached is None:
            logits = with_unit_stride(logits)
            params, layout = contiguous_params(m)
            cached = self._add(size, kind, logits, m.facts, layout)
        call, geometry = cached
        return call, LaunchContext(call, geometry, logits, m, params, self._converter, flags)

    def _add(
        self,
        size: tuple[int, int, int, int],
        kind: CallKind,
        logits: Tensor,
        facts: BatchFacts,
        layout: ParamsLayout,
    ) -> tuple[CompiledCall, Geometry]:
        """Look up or build, then cache, the compiled call of a variant and the geometry of a batch size."""
        key = kind, logits_key(logits), layout, True
        rows, _, draft_rows, _ = size
        if isinstance(kind, VerifyVariant) and kind.draft_kind == LOGITS:
            rows += draft_rows
        configuration = plan.configuration_for(self.target.family, rows)
        call = self.by_variant.get((configuration, *key))
        if call is None:
            variant = self._variant(logits, facts, configuration, layout, kind)
            call = CompiledCall(variant, self.target, self._need.logprobs_mode, logits.device)
            self.by_variant.add((configuration, *key), call)
        return self.by_size.add((size, *key), (call, call.geometry(size)))

    def _variant(
        self,
        logits: Tensor,
        facts: BatchFacts,
        configuration: Configuration,
        layout: ParamsLayout,
        kind: CallKind,
    ) -> Variant:
        verify = kind if isinstance(kind, VerifyVariant) else None
        is_scored, mode = kind in (SCORE, SAMPLED_SCORE), self._need.logprobs_mode
        access, draft_access = RowAccess.of(logits), None
        if verify is not None and verify.draft_kind == LOGITS:
            draft_access = verify.q
        temperature, _, seed, *_ = layout.dtypes
        num_best = facts.logprobs_width(logits.shape[1])
        # An entropy is that of a softmax, also in a mode that shows logits.
        normalises = mode == "raw_logprobs" or (is_scored and mode == "raw_logits")
        is_shown = num_best is not None or is_scored
        return Variant(
            logits=access,
            vocab_size=logits.shape[1],
            params=layout,
            num_best=num_best or 0 if is_scored else num_best,
            wants_ranks=self._need.logprob_ranks,
            wants_least_kept=self._need.threshold,
            has_raw_sums=is_shown and normalises and temperature is not None,
            is_aligned=access.is_aligned and (draft_access is None or draft_access.is_aligned),
            configuration=configuration,
            has_fresh_seeds=not is_scored and (seed is None or not layout.all_seeded),
            verify=verify,
            is_scored=is_scored,
            is_drawn=kind != SAMPLED_SCORE or layout.has_filters,
            has_entropy_sums=is_scored and not (layout.has_filters and mode.startswith("processed")),
        )
