"""The compiled kernels of a variant with their constants and scratch, and the geometry of each batch size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tokendraw.plugin import MOMENTS, LogprobsMode
from tokendraw_triton_gumbel.dispatch.row_intervals import interval_placeholders
from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.compilation import ANY_INT, ANY_STRIDE, FLOAT32, Pointer
from tokendraw_triton_gumbel.host.geometry import Geometry, geometry_of
from tokendraw_triton_gumbel.host.launch import LaunchArguments, Step, compile_steps
from tokendraw_triton_gumbel.host.scratch import Scratch
from tokendraw_triton_gumbel.host.variant import CallSize, Target, Variant
from tokendraw_triton_gumbel.kernels.shared import row_params
from tokendraw_triton_gumbel.kernels.shared.argument_groups import MomentResults, RankedTokens
from tokendraw_triton_gumbel.kernels.tile_pass.combine_floors import FilterFloors
from tokendraw_triton_gumbel.launches.draw import DrawLaunches
from tokendraw_triton_gumbel.launches.logprobs import LogprobsLaunches, mode_flags
from tokendraw_triton_gumbel.launches.verify import VerifyLaunches

_EXACT: int = row_params.EXACT.value
_ROW_EXACT: int = row_params.ROW_EXACT.value
_MANY_EXACT: int = row_params.MANY_EXACT.value
_LEAST_KEPT: int = row_params.LEAST_KEPT.value
_HAS_FLOOR: int = row_params.HAS_FLOOR.value
_RANKED: int = row_params.RANKED.value
_OWN: int = row_params.OWN.value
_SHOWN: int = row_params.SHOWN.value


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
        self.flags = params_layout.presence_flags(
            variant.param_dtypes, has_fresh_seeds=variant.has_fresh_seeds
        )
        """Flags of every launch, as bits of :mod:`~tokendraw_triton_gumbel.kernels.shared.row_params`."""
        if variant.is_exact:
            self.flags += _EXACT
        if variant.interval is not None:
            self.flags += _ROW_EXACT
        if variant.is_tempered_last:
            self.flags += _MANY_EXACT
        if variant.wants_least_kept:
            self.flags += _LEAST_KEPT
        if variant.moments:
            self.flags += _HAS_FLOOR
        if self.counts_ranks and not variant.is_scored:
            self.flags += _RANKED
        if variant.has_logprobs and verify is not None:
            self.flags += _SHOWN
        if variant.draws_logprobs:
            self.flags += _OWN + mode_flags(mode)
        compile_steps(self._placeholder_steps())

    def geometry(self, size: tuple[int, ...]) -> Geometry:
        """Compute the grids and the scratch layout of a size.

        :param size: the numbers of :class:`~tokendraw_triton_gumbel.host.variant.CallSize`.
        """
        return geometry_of(self.variant, self._target, self.scratch, CallSize(*size))

    def logprobs_out(self, rows: int) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """Return new tensors for ranks [rows], if wanted, and ids and values [rows, 1 + N], if kernels fill them."""
        if self.logprobs is None:
            return None, None
        ranks = None
        if self.variant.wants_ranks:
            ranks = (
                self.int64_proto.new_zeros(rows)
                if self.variant.is_scored
                else self.int64_proto.new_empty(rows)
            )
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
            params_layout.placeholders(variant.param_dtypes),
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
