"""The launches of a kind of call, compiled once, and the arguments that each call gives them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from tokendraw import BatchFacts, LogprobsTensors, Need, SamplingMetadata
from tokendraw.filters import RowMoments, filter_floors
from tokendraw.plugin import MOMENTS, LogprobsMode, Moment
from tokendraw_triton_gumbel import plan
from tokendraw_triton_gumbel.compilation import ANY_INT, ANY_STRIDE, FLOAT32, Pointer
from tokendraw_triton_gumbel.kernels import rows as row_params
from tokendraw_triton_gumbel.kernels.interval import FilterParams, IntervalParams
from tokendraw_triton_gumbel.kernels.rows import LOGITS
from tokendraw_triton_gumbel.kernels.tile_pass import FilterFloors, MomentResults, RankedTokens
from tokendraw_triton_gumbel.launch import ArgumentConverter, Step, compile_steps, current_stream, group
from tokendraw_triton_gumbel.launches import (
    DrawLaunches,
    IntervalArguments,
    LaunchArguments,
    LogprobsLaunches,
    VerifyLaunches,
    mode_flags,
    topk_logprobs,
)
from tokendraw_triton_gumbel.plan import (
    FIELDS,
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
    geometry_of,
    interval_tensors,
    row_layout,
    with_unit_stride,
)

# The floors of a batch's filters from moments, computed between the pass over the logits and the draw.


class RowFloors:
    """Room for the moments of each row, and the floors that the filters compute from these."""

    __slots__ = ("_kept", "_moments", "_names", "_values", "results")

    def __init__(
        self,
        names: Sequence[str],
        values: Tensor,
        moments: Tensor,
        wanted: Sequence[Moment],
        target_rows: Tensor | None = None,
    ) -> None:
        """Hold the arguments.

        :param target_rows: [rows] int64, to be filled in, where the rows are not those of ``values``.
        """
        self._names, self._values = names, values
        self._moments: dict[Moment, Tensor] = dict(zip(wanted, moments.unbind(), strict=True))
        self.results: tuple[Tensor | None, ...] = (*map(self._moments.get, MOMENTS), target_rows)
        """The fields of :class:`~.kernels.tile_pass.MomentResults`, which a kernel fills in."""
        self._kept: list[Tensor] = []
        """Tensors that have to live until kernels are launched on their addresses."""

    def compute(self, convert: Callable[[Sequence[Tensor]], Sequence[Any]]) -> Iterator[FilterFloors]:
        """Call the filters, and yield the arguments of a launch for each.

        :raises FilterError: a filter raised, or returned another form.
        """
        target_rows, values = self.results[-1], self._values
        if target_rows is not None:
            values = values.index_select(0, target_rows)
        for number, (floor, value, off) in enumerate(
            filter_floors(self._names, values, RowMoments(**self._moments))
        ):
            floors = floor.contiguous()
            self._kept += (floors, value)
            (off_bits,) = struct.unpack("i", struct.pack("f", off))
            yield group(FilterFloors, (*convert((floors, value)), value.stride(0), off_bits, int(not number)))


# The tensors of a call whose rows may ask for XTC or the filter order ``temperature_last``.

_TEMPERATURE, _MIN_P = FIELDS.index("temperature"), FIELDS.index("min_p")


class RowIntervals:
    """The parameters for kept intervals, and room for what launches write of slots and rows."""

    __slots__ = ("_params", "_written", "ceiling")

    def __init__(
        self, m: SamplingMetadata, variant: Variant, params: ParamTensors, proto: Tensor, rows: int
    ) -> None:
        """Allocate the room.

        :param proto: an empty float32 tensor on the device; ``rows`` the number of rows.
        """
        self._params = interval_tensors(m)
        temperature, min_p = params[_TEMPERATURE], params[_MIN_P]
        self._written: tuple[Tensor | None, ...] = (None, None, None)
        if variant.is_tempered_last:
            other = (
                None if temperature is None or not variant.has_second_sums else torch.empty_like(temperature)
            )
            self._written = (_empty_like(temperature), other, _empty_like(min_p))
        self.ceiling = proto.new_empty(rows) if variant.has_ceiling else None
        """[rows] float32, filled by the last launch of the draw; None without XTC."""

    def arguments(self, convert: Callable[[Sequence[Tensor | None]], Sequence[Any]]) -> IntervalArguments:
        """Return the arguments of the launches."""
        is_last, (ceiling,) = self._params[0], convert((self.ceiling,))
        params, written = (
            group(IntervalParams, convert(self._params)),
            group(FilterParams, convert(self._written)),
        )
        return IntervalArguments(params, written, 0 if is_last is None else len(is_last), ceiling)


def interval_placeholders(variant: Variant) -> IntervalArguments | None:
    """Return placeholders of the arguments for the compilation of a variant; None if no row may ask."""
    if variant.interval is None:
        return None
    params = IntervalParams(*[_placeholder(dtype) for dtype in variant.interval])
    temperature, min_p = (variant.param_dtypes[index] for index in (_TEMPERATURE, _MIN_P))
    written = FilterParams()
    if variant.is_tempered_last:
        other = temperature if variant.has_second_sums else None
        written = FilterParams(*[_placeholder(dtype) for dtype in (temperature, other, min_p)])
    return IntervalArguments(params, written, ANY_INT, FLOAT32 if variant.has_ceiling else None)


def _empty_like(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.empty_like(tensor)


def _placeholder(dtype: torch.dtype | None) -> Pointer | None:
    return None if dtype is None else Pointer(dtype, aligned=False)


# The compiled kernels of a variant with their constants and scratch, and the geometry of each batch size.


class CompiledCall:
    """The launches of a variant. It holds no tensor of any call, so that threads share it."""

    def __init__(self, variant: Variant, target: Target, mode: LogprobsMode, device: torch.device) -> None:
        verify = variant.verify
        self.variant, self._target = variant, target
        self.device = -1 if device.type == "cpu" else device.index
        self.int64_proto, self.float32_proto, self.bool_proto, self.uint8_proto = (
            torch.empty(0, dtype=dtype, device=device)
            for dtype in (torch.int64, torch.float32, torch.bool, torch.uint8)
        )
        """Prototypes of new tensors: ``new_empty`` need not look at a dtype and a device each time."""
        self.scratch = Scratch()
        self.draw = DrawLaunches(variant, target, self.scratch)
        self.verify = (
            None if verify is None else VerifyLaunches(variant, verify, self.draw, target, self.scratch)
        )
        self.logprobs, self.counts_ranks = None, False
        if variant.num_best is not None:
            is_masked = variant.has_ceiling and mode.startswith("processed")
            self.logprobs = LogprobsLaunches(
                self.draw, variant.num_best, mode, self.scratch, is_masked=is_masked
            )
            # The ranks of scored tokens come with the first pass, which knows no ceiling.
            self.counts_ranks = variant.wants_ranks and (is_masked or not variant.is_scored)
        self.flags = plan.presence_flags(variant.param_dtypes, has_fresh_seeds=variant.has_fresh_seeds)
        """Flags of every launch, as bits of :mod:`.kernels.rows`."""
        for flag, is_set in (
            (row_params.EXACT, variant.is_exact),
            (row_params.ROW_EXACT, variant.interval is not None),
            (row_params.MANY_EXACT, variant.is_tempered_last),
            (row_params.LEAST_KEPT, variant.wants_least_kept),
            (row_params.HAS_FLOOR, variant.moments != ()),
            (row_params.RANKED, self.counts_ranks and not variant.is_scored),
            (row_params.SHOWN, variant.has_logprobs and verify is not None),
            (row_params.OWN, variant.draws_logprobs),
        ):
            self.flags += flag.value if is_set else 0
        self.flags += mode_flags(mode) if variant.draws_logprobs else 0
        compile_steps(self._placeholder_steps())

    def geometry(self, size: tuple[int, ...]) -> Geometry:
        """Compute the grids and the scratch layout of a size."""
        return geometry_of(self.variant, self._target, self.scratch, CallSize(*size))

    def logprobs_out(self, rows: int) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """Return new tensors for ranks [rows], if wanted, and ids and values [rows, 1 + N], if kernels fill them."""
        if self.logprobs is None:
            return None, None
        ranks = None
        if self.variant.wants_ranks:
            # Scored tokens' ranks are counted up from 0 by the first pass; a launch sets those of drawn ones.
            new = self.int64_proto.new_zeros if self.variant.is_scored else self.int64_proto.new_empty
            ranks = new(rows)
        if not self.logprobs.by_kernel:
            return ranks, None
        columns = 1 + self.logprobs.num_best
        return ranks, (
            self.int64_proto.new_empty(rows, columns),
            self.float32_proto.new_empty(rows, columns),
        )

    def _placeholder_steps(self) -> Iterator[Step]:
        """Yield the launches of a call of some size, with placeholders for tensors."""
        variant, verify = self.variant, self.variant.verify
        int64, int32, float32, boolean = (
            Pointer(dtype) for dtype in (torch.int64, torch.int32, torch.float32, torch.bool)
        )
        arguments = LaunchArguments(
            self.geometry((1,) if verify is None else (2, 1, 1, 1)),
            (variant.logits.pointer, variant.logits.stride),
            plan.placeholders(variant.param_dtypes),
            0,
            self.scratch.pointers,
            MomentResults(
                *[float32 if name in variant.moments else None for name in MOMENTS],
                int64 if variant.draws_drafts else None,
            ),
            (lambda: (FilterFloors(FLOAT32, FLOAT32, *[ANY_INT] * 3),)) if variant.moments else None,
            interval_placeholders(variant),
        )
        least_kept = float32 if variant.wants_least_kept else None
        if self.verify is None or verify is None:
            details = (float32, float32) if variant.needs_thresholds else (None, None)
            ranked = RankedTokens()
            if variant.is_scored and variant.wants_ranks and not self.counts_ranks:
                ranked = RankedTokens(Pointer(torch.int64, aligned=False), int64)
            yield from self.draw.steps(arguments, (int64, boolean, *details, least_kept), ranked=ranked)
        else:
            yield from self.verify.steps(
                arguments,
                (int64, int32, boolean, int64),
                drafts=(None, None) if verify.q is None else (verify.q.pointer, verify.q.stride),
                chain=(
                    Pointer(verify.id_dtype, aligned=False),
                    1,
                    Pointer(verify.offset_dtype, aligned=False),
                ),
            )
        if self.logprobs is not None:
            requested = variant.param_dtypes[-1]
            requested_in = None if requested is None else Pointer(requested, aligned=False)
            drawn = int64, float32, float32
            yield from self.logprobs.steps(
                arguments,
                requested_in,
                drawn,
                ranked=(Pointer(torch.int64, aligned=False), int64) if self.counts_ranks else None,
                best=(int64, float32) if self.logprobs.by_kernel and variant.searches_best else None,
                given=None
                if variant.given_dtype is None
                else (Pointer(variant.given_dtype, aligned=False), ANY_STRIDE, ANY_INT),
                given_out=(int64, float32),
            )
            if variant.is_scored:
                yield self.logprobs.score_step(
                    arguments,
                    requested_in,
                    drawn,
                    Pointer(torch.int64, aligned=False),
                    (
                        int64,
                        float32,
                        int64 if variant.wants_ranks else None,
                        float32,
                        least_kept if not variant.is_drawn else None,
                    ),
                )


# The context of a call: scratch, fresh seeds, arguments, and the stream of the launches.

_NO_MOMENTS = MomentResults()


class LaunchContext:
    """Scratch and arguments of a call. Only returned tensors outlive the call."""

    __slots__ = (
        *("_call", "_floors", "_intervals", "_logits", "_memory", "_params", "_seed_stream", "_seeds"),
        *("_stream", "arguments", "ceiling", "convert"),
    )

    def __init__(
        self,
        call: CompiledCall,
        geometry: Geometry,
        logits: Tensor,
        m: SamplingMetadata,
        params: ParamTensors,
        converter: ArgumentConverter,
        flags: int = 0,
    ) -> None:
        """Allocate scratch, and draw fresh seeds from torch's generator where a row may need one."""
        # Tensors whose addresses kernels are given have to live until they are launched.
        self._seeds = call.int64_proto.new_empty(logits.shape[0]) if call.variant.has_fresh_seeds else None
        self._seed_stream = None if self._seeds is None else _fill_seeds(self._seeds)
        self._memory = call.uint8_proto.new_empty(geometry.scratch_offsets[-1])
        self._call, self._logits, self._params = call, logits, params
        self._stream = current_stream(call.device)
        self.convert = converter.tensors
        """Returns the arguments for tensors, and None for None."""
        head = converter.tensor(logits), logits.stride(0)
        row_params = converter.params(params, self._seeds)
        scratch = converter.scratch(
            call.scratch, self._memory, geometry.scratch_counts, geometry.scratch_offsets
        )
        moments, floors = _NO_MOMENTS, None
        if call.variant.moments:
            self._floors = _row_floors(call, m, geometry.counts.rows)
            moments, floors = (
                group(MomentResults, converter.tensors(self._floors.results)),
                self._compute_floors,
            )
        interval, self.ceiling = None, None
        if call.variant.interval is not None:
            self._intervals = RowIntervals(m, call.variant, params, call.float32_proto, logits.shape[0])
            self.ceiling, interval = self._intervals.ceiling, self._intervals.arguments(self.convert)
        self.arguments = group(
            LaunchArguments,
            (geometry, head, row_params, call.flags | flags, scratch, moments, floors, interval),
        )

    def _compute_floors(self) -> Iterator[FilterFloors]:
        """Call the filters of the batch, once the moments are there; yield the arguments of a launch for each."""
        return self._floors.compute(self.convert)

    def launch(self, steps: Iterable[Step]) -> None:
        """Launch kernels in order; all but the first wait for fresh seeds."""
        for launch, grid, arguments in steps:
            launch(grid, arguments, self._stream)
            if self._seed_stream is not None:
                torch.cuda.current_stream(self._logits.device).wait_stream(self._seed_stream)
                self._seed_stream = None

    def logprobs(
        self,
        m: SamplingMetadata,
        drawn: tuple[Tensor, Tensor, Tensor],
        ranks: Tensor | None,
        best: tuple[Tensor, Tensor] | None,
        scored: tuple[Tensor, Tensor, Tensor | None] | None = None,
    ) -> LogprobsTensors:
        """Fill in the logprobs of the drawn tokens, or those of scored ones in their place.

        :param drawn: token ids [rows] int64; thresholds [rows] float32, where ``x >= threshold`` is kept;
            log_kept_mass [rows].
        :param scored: tokens [rows] int64. To be filled in: entropies [rows] float32, and where no row is drawn the
            least kept logits [rows], if wanted.
        """
        logprobs, draw, variant = self._call.logprobs, self._call.draw, self._call.variant
        assert logprobs is not None  # a batch without logprobs has none to fill in
        tokens = drawn[0] if scored is None else scored[0]
        *converted, tokens_in, ranks_out, requested = self.convert((*drawn, tokens, ranks, self._params[-1]))
        best_out = self.convert(best) if best is not None and variant.searches_best else None
        given: tuple[Tensor, ...] = ()
        given_in, given_out = None, list[Any]()
        ids = m.given_ids
        if ids is not None:
            ids = with_unit_stride(ids)
            rows, count = self._logits.shape[0], ids.shape[1]
            given = (
                self._call.int64_proto.new_empty(rows, count),
                self._call.float32_proto.new_empty(rows, count),
            )
            address, *given_out = self.convert((ids, *given))
            given_in = (address, ids.stride(0), count) if count else None
        self.launch(
            logprobs.steps(
                self.arguments,
                requested,
                converted,
                ranked=(tokens_in, ranks_out) if self._call.counts_ranks else None,
                best=best_out,
                given=given_in,
                given_out=given_out,
            )
        )
        logits, ceiling = self._logits, None
        if logprobs.is_masked and self.ceiling is not None:
            ceiling = self.ceiling.unsqueeze(-1)
        if ceiling is not None and given:
            _hide_above(ceiling, logits, *given)
        if best is None:
            if ceiling is not None:
                logits = logits.masked_fill(logits > ceiling, -torch.inf)
            maxima = self.row_buffer(draw.maxima, draw.tiles)
            sums = self.row_buffer(draw.mode_sums, draw.tiles)
            token_ids, thresholds, log_kept = drawn
            log_masses = None if logprobs.log_masses is None else self.row_buffer(logprobs.log_masses)
            best = topk_logprobs(
                logits,
                m,
                token_ids,
                maxima,
                sums,
                thresholds,
                log_kept,
                logprobs.mode,
                logprobs.num_best,
                None if ceiling is None or log_masses is None else (ceiling, log_masses.unsqueeze(-1)),
            )
        if scored is not None:
            out = (*self.convert(best), ranks_out, *self.convert(scored[1:]))
            self.launch([logprobs.score_step(self.arguments, requested, converted, tokens_in, out)])
        return LogprobsTensors(*best, ranks, *given)

    def row_buffer(self, index: int, *shape: int) -> Tensor:
        """Return the rows of the target, or of the logits, in a scratch buffer: [rows, ...]."""
        geometry = self.arguments.geometry
        rows, offset = geometry.size.rows, geometry.scratch_offsets[index]
        return self._call.scratch.buffer(index, self._memory, offset, rows).view(rows, *shape)


def _hide_above(ceiling: Tensor, logits: Tensor, token_ids: Tensor, logprobs: Tensor) -> None:
    """Set the log-probabilities of ids [rows, M] to -inf where logits exceed a ceiling [rows, 1]; id -1 is none."""
    ids = token_ids.clamp(0, logits.shape[-1] - 1)
    logprobs.masked_fill_(logits.gather(-1, ids) > ceiling, -torch.inf)


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


def _row_floors(call: CompiledCall, m: SamplingMetadata, rows: int) -> RowFloors:
    """Return room for the moments and floors of a call."""
    filters, wanted = m.filters_per_row(), call.variant.moments
    assert filters is not None  # a batch without filters reads no moments
    # A row of drafts that no request has is never drawn, and takes the values of the first row.
    target_rows = call.int64_proto.new_zeros(rows) if call.variant.draws_drafts else None
    return RowFloors(*filters, call.float32_proto.new_empty(len(wanted), rows), wanted, target_rows)


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

    def __init__(self, need: Need) -> None:
        self._need = need
        self.by_variant: BoundedCache[CallKey, CompiledCall] = BoundedCache(_MAX_CALLS)
        self.by_size: BoundedCache[CallKey, tuple[CompiledCall, Geometry]] = BoundedCache(_MAX_SIZES)
        """By (numbers of ``CallSize``, :data:`CallKind`, ``logits_key``, ``ParamsLayout``, True)."""

    def add(
        self,
        target: Target,
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
        configuration = plan.configuration_for(target.family, rows)
        call = self.by_variant.get((configuration, *key))
        if call is None:
            variant = self._variant(logits, facts, configuration, layout, kind)
            call = CompiledCall(variant, target, self._need.logprobs_mode, logits.device)
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
        access, vocab_size = RowAccess.of(row_layout(logits)), logits.shape[1]
        draft_access = verify.q if verify is not None and verify.draft_kind == LOGITS else None
        temperature, _, seed, *_ = layout.dtypes
        num_best = facts.logprobs_width(vocab_size)
        # An entropy is that of a softmax, also in a mode that shows logits.
        normalises = mode == "raw_logprobs" or (is_scored and mode == "raw_logits")
        return Variant(
            logits=access,
            vocab_size=vocab_size,
            has_filters=layout.has_filters,
            num_best=num_best or 0 if is_scored else num_best,
            wants_ranks=self._need.logprob_ranks,
            given_dtype=layout.given_dtype,
            wants_least_kept=self._need.threshold,
            has_raw_sums=(layout.max_logprobs is not None or is_scored)
            and normalises
            and temperature is not None,
            is_aligned=access.is_aligned and (draft_access is None or draft_access.is_aligned),
            configuration=configuration,
            param_dtypes=layout.dtypes,
            has_fresh_seeds=not is_scored and (seed is None or not layout.all_seeded),
            verify=verify,
            is_scored=is_scored,
            is_drawn=kind != SAMPLED_SCORE or layout.has_filters,
            has_entropy_sums=is_scored and not (layout.has_filters and mode.startswith("processed")),
            moments=layout.moments,
            interval=layout.interval,
        )
