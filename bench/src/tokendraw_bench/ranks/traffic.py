"""Counts the bytes that a rank receives in a call, and measures the peak memory of the call."""

# mypy: allow-untyped-calls
# torch's dispatch modes have no types.

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tokendraw.vocab_parallel import Transport


class CountingTransport:
    """A transport that counts collectives and received bytes.

    In a gather a rank receives the tensors of the others, in a broadcast that of rank 0, and in a sum twice the tensor
    less its own part, as by the ring of NCCL.
    """

    def __init__(self, inner: Transport) -> None:
        self.rank, self.size = inner.rank, inner.size
        self.collectives = self.received = 0
        self._inner = inner

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Gather, and count the tensors of all other ranks."""
        self._count((self.size - 1) * tensor.nbytes)
        return self._inner.all_gather(tensor)

    def all_sum(self, tensor: Tensor) -> None:
        """Sum, and count the parts that a ring sends round."""
        self._count(2 * (self.size - 1) * tensor.nbytes // self.size)
        self._inner.all_sum(tensor)

    def broadcast_from_first(self, tensor: Tensor) -> Callable[[], object]:
        """Begin a broadcast, and count the tensor."""
        self._count(tensor.nbytes * (self.rank > 0))
        return self._inner.broadcast_from_first(tensor)

    def gather_objects(self, value: Any) -> list[Any]:
        """Gather through the host, uncounted: once for a shard."""
        return self._inner.gather_objects(value)

    def _count(self, nbytes: int) -> None:
        self.collectives += 1
        self.received += nbytes


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], int]]:
    """Measure the peak of the bytes of live tensors, less those alive at the start.

    On CUDA they are those of torch's allocator, which knows the temporaries inside of an operation too; on a CPU those
    that operations return.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: int(torch.cuda.max_memory_allocated(device)) - before
        return
    with _LiveTensors() as live:
        yield lambda: live.peak


class _LiveTensors(TorchDispatchMode):
    """Adds up the live storages of the tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: Counter[int] = Counter()
        """Bytes of each storage, by its address."""
        self._views: Counter[int] = Counter()
        """Number of tensors that refer to it."""

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
