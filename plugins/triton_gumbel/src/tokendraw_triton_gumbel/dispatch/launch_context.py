"""The context of a call: scratch, fresh seeds, arguments, and the stream of the launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from tokendraw import LogprobsTensors, SamplingMetadata
from tokendraw_triton_gumbel.dispatch.compiled_call import CompiledCall
from tokendraw_triton_gumbel.dispatch.row_floors import RowFloors
from tokendraw_triton_gumbel.dispatch.row_intervals import RowIntervals
from tokendraw_triton_gumbel.host.arguments import ArgumentConverter
from tokendraw_triton_gumbel.host.geometry import Geometry
from tokendraw_triton_gumbel.host.launch import LaunchArguments, Step, current_stream, group
from tokendraw_triton_gumbel.host.params_layout import ParamTensors
from tokendraw_triton_gumbel.host.row_layout import with_unit_stride
from tokendraw_triton_gumbel.host.tuning import SMALL_BATCH_ROWS
from tokendraw_triton_gumbel.kernels.shared.argument_groups import MomentResults
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import FilterFloors
from tokendraw_triton_gumbel.launches.topk_logprobs import topk_logprobs

_NO_MOMENTS = MomentResults()


class LaunchContext:
    """Scratch and arguments of a call. Only returned tensors outlive the call."""

    __slots__ = (
        *(
            "_call",
            "_floors",
            "_intervals",
            "_logits",
            "_memory",
            "_params",
            "_seed_stream",
            "_seeds",
            "_stream",
        ),
        *("arguments", "ceiling", "convert"),
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
        """Allocate scratch, and draw fresh seeds from torch's generator where a row may need one.

        :param geometry: of the size of the call.
        :param logits: [rows, V].
        :param params: of ``m``, contiguous.
        :param flags: bits beside those of the variant.
        """
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
        :param ranks: what :meth:`.CompiledCall.logprobs_out` returned, like ``best``.
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
                None if logprobs.keys is None else self.row_buffer(logprobs.keys, logprobs.room),
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
