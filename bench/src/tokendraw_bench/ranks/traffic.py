"""Counts the bytes that a rank receives in a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

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
