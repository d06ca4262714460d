"""Buffers that the chunks of one thread reuse. On a CPU, fresh memory costs more than the arithmetic done on it."""

from __future__ import annotations

import torch
from torch import Tensor


class Buffers:
    """Hands out buffers by name. Taking a name again hands out the same memory, so its previous contents are lost."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised buffer [rows, columns]. The first taken by a name needs the most rows."""
        buffer = self._buffers.get(name)
        if buffer is None:
            buffer = self._buffers[name] = torch.empty(rows, columns, dtype=dtype, device=self._device)
        return buffer if len(buffer) == rows else buffer[:rows]

    def like(self, name: str, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return an uninitialised buffer of the shape of ``x`` [rows, columns], by default of its dtype."""
        return self.take(name, x.shape[0], x.shape[1], dtype or x.dtype)
