"""Launches the kernels of one kind of call, from the second time on without asking Triton which variants they are.

Scratch of a call is one allocation. Kernels that were compiled before are given addresses, which cost less than tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 256


class Layout:
    """Where each piece of scratch lies in one allocation."""

    def __init__(self) -> None:
        self.size = 0
        self.offsets: list[int] = []
        self._pieces: list[tuple[int, torch.dtype]] = []

    def reserve(self, dtype: torch.dtype, count: int) -> int:
        """Ask for ``count`` elements; the answer is the number of the piece."""
        nbytes = count * dtype.itemsize
        self.offsets.append(self.size)
        self._pieces.append((nbytes, dtype))
        self.size += -(-nbytes // _ALIGNED) * _ALIGNED
        return len(self.offsets) - 1

    def tensors(self, memory: Tensor) -> list[Tensor]:
        """The pieces in ``memory`` [size] uint8, each of one dimension."""
        return [
            memory[offset : offset + nbytes].view(dtype)
            for offset, (nbytes, dtype) in zip(self.offsets, self._pieces, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel and all that its launches have in common."""

    kernel: Any
    grid: tuple[int, int, int]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    compiled: dict[Hashable, Any] = field(default_factory=dict)

    def __call__(self, variant: Hashable, arguments: Sequence[Any]) -> None:
        """Launch it.

        :param variant: what Triton would compile another variant for, beyond what all launches share; None: it is to
            find out by itself.
        :param arguments: tensors, numbers and None; of a variant that was launched before, addresses will do.
        """
        compiled = self.compiled.get(variant)
        if compiled is not None:
            compiled[self.grid](*arguments, *self.constants.values())
            return
        compiled = self.kernel[self.grid](*arguments, **self.constants, **self.options)
        if variant is not None and compiled is not None:  # the interpreter compiles nothing
            self.compiled[variant] = compiled
