"""Conversion of tensors to kernel arguments: addresses for compiled kernels, tensors for Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tokendraw_triton_gumbel.host import params_layout
from tokendraw_triton_gumbel.host.launch import group
from tokendraw_triton_gumbel.host.params_layout import ParamTensors
from tokendraw_triton_gumbel.host.scratch import Scratch
from tokendraw_triton_gumbel.kernels.shared.argument_groups import RowParams


class ArgumentConverter(Protocol):
    """Turns the tensors of a call into kernel arguments."""

    def tensor(self, tensor: Tensor, /) -> Any:
        """Return the argument for a tensor."""

    def tensors(self, tensors: Sequence[Tensor | None]) -> Sequence[Any]:
        """Return the arguments for tensors, and None for None."""

    def params(self, tensors: ParamTensors, fresh_seeds: Tensor | None) -> RowParams:
        """Return the arguments for contiguous parameters."""

    def scratch(
        self, scratch: Scratch, memory: Tensor, counts: tuple[int, ...], offsets: Sequence[int]
    ) -> Sequence[Any]:
        """Return the arguments for the buffers of scratch in ``memory``.

        :param counts: what the scratch is laid out for, with :meth:`.Scratch.offsets` as ``offsets``.
        """


class AddressConverter:
    """The arguments of compiled kernels. A parameter that is absent is at 0, and no kernel reads it."""

    tensor = staticmethod(Tensor.data_ptr)

    @staticmethod
    def tensors(tensors: Sequence[Tensor | None]) -> list[int | None]:
        """Return the addresses of tensors."""
        return [None if tensor is None else tensor.data_ptr() for tensor in tensors]

    @staticmethod
    def params(tensors: ParamTensors, fresh_seeds: Tensor | None) -> RowParams:
        """Return the addresses of the parameters."""
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors[:-1]]
        addresses.insert(
            params_layout.FRESH_SEEDS_INDEX, 0 if fresh_seeds is None else fresh_seeds.data_ptr()
        )
        addresses.append(0)  # of floors, which are computed later
        return group(RowParams, addresses)

    @staticmethod
    def scratch(
        scratch: Scratch, memory: Tensor, counts: tuple[int, ...], offsets: Sequence[int]
    ) -> list[int]:
        """Return the addresses of the buffers."""
        base = memory.data_ptr()
        return [base + offset for offset in offsets]


class TensorConverter:
    """The arguments of interpreted kernels. The interpreter cannot add to the address of an absent tensor."""

    @staticmethod
    def tensor(tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    @staticmethod
    def tensors(tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Return the tensors."""
        return tensors

    @staticmethod
    def params(tensors: ParamTensors, fresh_seeds: Tensor | None) -> RowParams:
        """Return the parameters, and a zero of the expected dtype for each absent parameter."""
        given = list(tensors[:-1])
        given.insert(params_layout.FRESH_SEEDS_INDEX, fresh_seeds)
        given.append(None)
        placeholders = params_layout.placeholders(
            [None if tensor is None else tensor.dtype for tensor in tensors]
        )
        return RowParams(
            *[
                torch.zeros(1, dtype=placeholder.dtype, device="cpu")
                if tensor is None and placeholder is not None
                else tensor
                for tensor, placeholder in zip(given, placeholders, strict=True)
            ]
        )

    @staticmethod
    def scratch(
        scratch: Scratch, memory: Tensor, counts: tuple[int, ...], offsets: Sequence[int]
    ) -> list[Tensor]:
        """Return the buffers."""
        return scratch.buffers(memory, counts)
