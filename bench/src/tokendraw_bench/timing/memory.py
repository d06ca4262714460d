"""Measures the bytes of the tensors of a call: their peak, and those alive after the call."""

# mypy: allow-untyped-calls
# torch's dispatch modes have no types.

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes of tensors beyond the tensors that were alive at the start.

    :ivar peak: Returns the largest number so far.
    :ivar alive: Returns the present number.
    """

    peak: Callable[[], int]
    alive: Callable[[], int]


@contextlib.contextmanager
def memory_use(device: torch.device) -> Iterator[MemoryUse]:
    """Measure the bytes of live tensors, less those alive at the start.

    On CUDA they are those of torch's allocator, which knows the temporaries inside of an operation too; on a CPU those
    that operations return.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield MemoryUse(
            peak=lambda: int(torch.cuda.max_memory_allocated(device)) - before,
            alive=lambda: int(torch.cuda.memory_allocated(device)) - before,
        )
        return
    with _LiveTensors() as live:
        yield MemoryUse(peak=lambda: live.peak, alive=lambda: live.alive)


def extra_memory(draw: Callable[[Any], object], inputs: Any, device: torch.device) -> int:
    """Measure the peak of a call in bytes, less its inputs and result."""
    with torch.no_grad(), memory_use(device) as use:
        result = draw(inputs)
        extra = use.peak() - use.alive()
        del result
    return extra


class _LiveTensors(TorchDispatchMode):
    """Adds up the live storages of the tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: Counter[int] = Counter()
        """Bytes of each storage, by its address."""
        self._views: Counter[int] = Counter()
        """Number of tensors that refer to it."""

    @property
    def alive(self) -> int:
        """Return the bytes of the live storages."""
        return self._live.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = {_address(t) for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor.numel():
                self._refer(tensor, is_new=_address(tensor) not in arguments)
        return result

    def _refer(self, tensor: Tensor, *, is_new: bool) -> None:
        address = _address(tensor)
        if not is_new and address not in self._live:
            return  # a view of what was there before
        self._live[address] = tensor.untyped_storage().nbytes()
        self._views[address] += 1
        self.peak = max(self.peak, self._live.total())
        weakref.finalize(tensor, self._forget, address)

    def _forget(self, address: int) -> None:
        self._views[address] -= 1
        if not self._views[address]:
            del self._live[address], self._views[address]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
