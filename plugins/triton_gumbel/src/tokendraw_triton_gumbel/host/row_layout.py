"""How kernels read the rows of a caller's tensor: dtype, alignment, stride and vectors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw_triton_gumbel.host.compilation import ANY_INT, Pointer
from tokendraw_triton_gumbel.kernels.shared.tile_layout import VECTORS

RowLayout = tuple[torch.dtype, int, int, int]
"""Dtype of a tensor [rows, columns]; its row stride modulo 16, and above 31 bits; its address modulo 16."""


def row_layout(tensor: Tensor) -> RowLayout:
    """Return dtype, row stride and address of a tensor [rows, columns], as far as kernels depend on them."""
    stride = tensor.stride(0)
    return tensor.dtype, stride % 16, stride >> 31, tensor.data_ptr() % 16


def with_unit_stride(rows: Tensor) -> Tensor:
    """Return rows of neighbouring elements, whatever the row stride: a copy if need be."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


class RowAccess(NamedTuple):
    """The properties of a tensor [rows, columns] in the compilation of a kernel."""

    dtype: torch.dtype
    is_aligned: bool
    """Whether every row begins at a multiple of 16 bytes: the address of the first says nothing by itself."""
    has_wide_stride: bool
    """Whether the row stride takes more than 31 bits."""

    @classmethod
    def of(cls, layout: RowLayout) -> RowAccess:
        """Derive the access from a layout."""
        dtype, stride, high_stride, address = layout
        return cls(dtype, stride == 0 and address == 0, high_stride > 0)

    @property
    def pointer(self) -> Pointer:
        """Return the placeholder for the tensor."""
        return Pointer(self.dtype, self.is_aligned)

    @property
    def stride(self) -> int:
        """Return the placeholder for the row stride: a multiple of 16 is of use only where the rows are aligned."""
        return (1 << 32 if self.has_wide_stride else 0) + (16 if self.is_aligned else ANY_INT)

    @property
    def vector(self) -> int:
        """Return the number of logits in 16 bytes."""
        vector: int = VECTORS[str(self.dtype).removeprefix("torch.")]
        return vector
