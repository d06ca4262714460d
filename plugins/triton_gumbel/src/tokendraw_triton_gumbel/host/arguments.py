"""Arguments that kernels get in place of tensors: their addresses; in Triton's interpreter the tensors themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.launch import group
from tokendraw_triton_gumbel.host.params_layout import MaybeTensors
from tokendraw_triton_gumbel.host.scratch import Places, Scratch
from tokendraw_triton_gumbel.kernels.shared.argument_groups import RowParams


class Arguments(Protocol):
    """Turns the tensors of a call into arguments of its kernels."""

    def one(self, tensor: Tensor, /) -> Any:
        """Return what stands for a tensor."""

    def tensors(self, tensors: Sequence[Tensor | None]) -> Sequence[Any]:
        """Return what stands for each tensor, and None for None."""

    def params(self, tensors: MaybeTensors, fresh: Tensor | None) -> RowParams:
        """Return what stands for the parameters.

        :param tensors: as :func:`.host.params_layout.readable` returns them.
        """

    def pieces(self, scratch: Scratch, geometry: Places, memory: Tensor) -> Sequence[Any]:
        """Return what stands for the pieces of scratch."""


class Addresses:
    """The arguments of compiled kernels. A parameter that is absent is at 0, and no kernel reads it."""

    one = staticmethod(Tensor.data_ptr)

    @staticmethod
    def tensors(tensors: Sequence[Tensor | None]) -> list[int | None]:
        """Return the addresses of tensors."""
        return [None if tensor is None else tensor.data_ptr() for tensor in tensors]

    @staticmethod
    def params(tensors: MaybeTensors, fresh: Tensor | None) -> RowParams:
        """Return the addresses of the parameters."""
        found = [0 if tensor is None else tensor.data_ptr() for tensor in tensors[:-1]]
        found.insert(params_layout.FRESH, 0 if fresh is None else fresh.data_ptr())
        return group(RowParams, found)

    @staticmethod
    def pieces(scratch: Scratch, geometry: Places, memory: Tensor) -> list[int]:
        """Return the addresses of the pieces."""
        base = memory.data_ptr()
        return [base + offset for offset in geometry.offsets]


class Tensors:
    """The arguments of interpreted kernels, which cannot add to an address of nothing."""

    @staticmethod
    def one(tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    @staticmethod
    def tensors(tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Return the tensors."""
        return tensors

    @staticmethod
    def params(tensors: MaybeTensors, fresh: Tensor | None) -> RowParams:
        """Return the parameters, and others of their types for what is absent."""
        found = list(tensors[:-1])
        found.insert(params_layout.FRESH, fresh)
        types = params_layout.stand_ins([None if tensor is None else tensor.dtype for tensor in tensors])
        return RowParams(
            *[
                torch.zeros(1, dtype=wanted.dtype) if tensor is None and wanted is not None else tensor
                for tensor, wanted in zip(found, types, strict=True)
            ]
        )

    @staticmethod
    def pieces(scratch: Scratch, geometry: Places, memory: Tensor) -> list[Tensor]:
        """Return the pieces."""
        return scratch.pieces(memory, geometry.counts)
