"""Buffers for the chunks of a thread. On a CPU, fresh memory costs more than the arithmetic done on it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor


class Buffers:
    """Hands out buffers by name. Taking a name again hands out the same memory, so its previous contents are lost."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}
        self._views: dict[str, tuple[tuple[int, int, torch.dtype], Tensor]] = {}

    def take(self, name: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised buffer [rows, columns]; a repeated shape takes no operation of torch."""
        shape = rows, columns, dtype
        cached = self._views.get(name)
        if cached is not None and cached[0] == shape:
            return cached[1]
        with torch.inference_mode(
            False
        ):  # so that calls inside and outside of inference mode can write to it
            size, buffer = rows * columns, self._buffers.get(name)
            if buffer is None or len(buffer) < size or buffer.dtype != dtype:
                buffer = self._buffers[name] = torch.empty(size, dtype=dtype, device=self._device)
            view = buffer[:size].view(rows, columns)
        self._views[name] = shape, view
        return view

    def like(self, name: str, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return an uninitialised buffer with the shape of ``x`` [rows, columns], by default with its dtype too."""
        return self.take(name, x.shape[0], x.shape[1], dtype or x.dtype)


_idle: deque[Buffers] = deque()
"""Buffers of CPUs that no thread uses, the last used ones at the end."""


@contextlib.contextmanager
def borrow(device: torch.device) -> Iterator[Buffers]:
    """Lend buffers to the calling thread. Those of CPUs outlive the call: for fresh memory the system clears pages."""
    if device.type != "cpu":
        yield Buffers(device)
        return
    try:
        buffers = _idle.pop()
    except IndexError:
        buffers = Buffers(device)
    yield buffers
    _idle.append(buffers)  # not after an error, which may have left a part of them to somebody
