"""Buffers that the chunks of one call share. On a CPU, fresh memory costs more than the arithmetic done on it."""

from __future__ import annotations

import torch
from torch import Tensor


class Scratch:
    """Lends buffers by name; what a buffer holds is lost when its name is lent again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def lend(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised buffer [rows, columns]; the first loan of a name needs the most rows."""
        buffer = self._buffers.get(name)
        if buffer is None:
            buffer = self._buffers[name] = torch.empty(rows, columns, dtype=dtype, device=self._device)
        return buffer if len(buffer) == rows else buffer[:rows]

    def like(self, name: str, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised buffer of the shape, and unless given the dtype, of ``x`` [rows, columns]."""
        return self.lend(name, x.shape[0], x.shape[1], dtype or x.dtype)
