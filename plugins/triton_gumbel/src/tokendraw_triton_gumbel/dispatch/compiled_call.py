"""All that calls of one variant have in common, made once: kernels, their constants, scratch, and grids by size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tokendraw.plugin import LogprobsMode
from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.compilation import Pointer
from tokendraw_triton_gumbel.host.geometry import Geometry, lay_out
from tokendraw_triton_gumbel.host.launch import Operands, Step, compile_steps
from tokendraw_triton_gumbel.host.scratch import Scratch
from tokendraw_triton_gumbel.host.variant import COUPLED, Size, Target, Variant
from tokendraw_triton_gumbel.kernels.shared import row_params
from tokendraw_triton_gumbel.launches.draw import DrawLaunches
from tokendraw_triton_gumbel.launches.logprobs import LogprobsLaunches, mode_flags
from tokendraw_triton_gumbel.launches.verify import VerifyLaunches

_EXACT: int = row_params.EXACT.value
_RANKED: int = row_params.RANKED.value
_OWN: int = row_params.OWN.value
_SHOWN: int = row_params.SHOWN.value
_REAL, _WHOLE, _TRUTH = torch.float32, torch.int64, torch.bool


class Call:
    """The launches of one variant. It remembers nothing of any call, so that threads share it."""

    def __init__(self, variant: Variant, target: Target, mode: LogprobsMode, device: torch.device) -> None:
        verify = variant.verify
        self.variant, self._target = variant, target
        self.device = -1 if device.type == "cpu" else device.index
        self.whole, self.real, self.truth, self.byte = (
            torch.empty(0, dtype=dtype, device=device) for dtype in (_WHOLE, _REAL, _TRUTH, torch.uint8)
        )
        """Prototypes of new tensors: ``new_empty`` need not look at a dtype and a device each time."""
        self.scratch = Scratch()
        self.draw = DrawLaunches(variant, target, self.scratch)
        self.verify = (
            None if verify is None else VerifyLaunches(variant, verify, self.draw, target, self.scratch)
        )
        self.logprobs = None
        if variant.num_best is not None:
            self.logprobs = LogprobsLaunches(self.draw, variant.num_best, mode, self.scratch)
        self.describes_drawn = variant.describes_drawn
        self.flags = params_layout.presence(variant.params, fresh=variant.fresh)
        """Flags of every launch, as bits of :mod:`~tokendraw_triton_gumbel.kernels.shared.row_params`."""
        if variant.described or (verify is not None and verify.known != COUPLED):
            self.flags += _EXACT
        if variant.described and variant.ranked:
            self.flags += _RANKED
        if variant.described and verify is not None:
            self.flags += _SHOWN
        if self.describes_drawn:
            self.flags += _OWN + mode_flags(mode)

    def geometry(self, size: tuple[int, ...]) -> Geometry:
        """Compute the grids of a size, and where its scratch lies.

        :param size: the numbers of :class:`~tokendraw_triton_gumbel.host.variant.Size`.
        """
        return lay_out(self.variant, self._target, self.scratch, Size(*size))

    def room_for_logprobs(self, rows: int) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """Return tensors for ranks [rows], if wanted, and for ids and values [rows, 1 + N], if kernels fill them."""
        if self.logprobs is None:
            return None, None
        ranks = self.whole.new_empty(rows) if self.variant.ranked else None
        if not self.logprobs.by_kernel:
            return ranks, None
        columns = 1 + self.logprobs.num_best
        return ranks, (self.whole.new_empty(rows, columns), self.real.new_empty(rows, columns))

    def compile(self) -> None:
        """Compile all that is launched, unless that was done in this process."""
        compile_steps(self._examples())

    def _examples(self) -> Iterator[Step]:
        """Yield the launches of some size, with what stands for their tensors."""
        variant, verify = self.variant, self.variant.verify
        whole, real, truth = (Pointer(dtype) for dtype in (_WHOLE, _REAL, _TRUTH))
        operands = Operands(
            self.geometry((1,) if verify is None else (2, 1, 1, 1)),
            (variant.logits.pointer, variant.logits.stride),
            params_layout.stand_ins(variant.params),
            0,
            self.scratch.pointers,
        )
        if self.verify is None or verify is None:
            details = (real, real) if self.logprobs else (None, None)
            yield from self.draw.steps(operands, (whole, truth, *details))
        else:
            yield from self.verify.steps(
                operands,
                (whole, Pointer(torch.int32), truth, whole),
                drafts=(None, None) if verify.q is None else (verify.q.pointer, verify.q.stride),
                chain=(Pointer(verify.ids, aligned=False), 1, Pointer(verify.offsets, aligned=False)),
            )
        if self.logprobs is not None:
            wanted = variant.params[-1]
            yield from self.logprobs.steps(
                operands,
                None if wanted is None else Pointer(wanted, aligned=False),
                (whole, real, real),
                ranks=whole if variant.ranked else None,
                best=(whole, real) if self.logprobs.by_kernel and not self.describes_drawn else None,
            )
