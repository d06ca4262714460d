"""Carries messages between ranks: a gather, a sum and a broadcast, by torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import type_name

Wait: TypeAlias = Callable[[], object]
"""Returns when what was begun is done, or, on a device with streams, is ordered before what is launched next."""


@runtime_checkable
class Transport(Protocol):
    """A rank's side of a group. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Return the number of this rank in the group."""
        ...

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return [R, ...], the contiguous tensors [...] of all ranks in rank order."""
        ...

    def all_sum(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor of integers by its sum over all ranks."""
        ...

    def broadcast_from_first(self, tensor: Tensor) -> Wait:
        """Begin to replace a contiguous tensor by the tensor of rank 0."""
        ...

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the picklable values of all ranks in rank order, through the host."""
        ...


class TorchDistributed:
    """The ranks of a torch.distributed process group: NCCL on GPUs, gloo on CPUs."""

    def __init__(self, group: Any) -> None:
        """Join the ranks of a group.

        :param group: a ``ProcessGroup`` that holds this process; None: the default one.
        :raises InvalidInputError: there is no default group, or this process is not in the group.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise InvalidInputError(
                "'shard' needs the ranks of a torch.distributed process group, found none. "
                "Call torch.distributed.init_process_group first."
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise InvalidInputError(
                f"'group' of a VocabShard needs a torch.distributed process group of which this process is a rank, "
                f"found {type_name(group)}. Pass what torch.distributed.new_group returned here, or None."
            )
        self._dist = dist
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self._first: int = 0 if group is None else dist.get_global_rank(group, 0)
        # torch 2.13 renamed it, and warns of the name that earlier versions have alone.
        self._gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return [R, ...], the contiguous tensors [...] of all ranks in rank order."""
        gathered = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        if tensor.numel():  # the ranks of an empty batch have nothing to say
            self._gather(gathered.view(-1), tensor.view(-1), group=self._group)
        return gathered

    def all_sum(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor of integers by its sum over all ranks."""
        if tensor.numel():
            self._dist.all_reduce(tensor, group=self._group)

    def broadcast_from_first(self, tensor: Tensor) -> Wait:
        """Begin to replace a contiguous tensor by the tensor of rank 0."""
        if not tensor.numel():
            return lambda: None
        work = self._dist.broadcast(tensor, self._first, group=self._group, async_op=True)
        wait: Wait = work.wait
        return wait

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the picklable values of all ranks in rank order, through the host."""
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=self._group)
        return values


def transport_of(group: Any) -> Transport:
    """Return the transport of a group: the group itself if it is a :class:`Transport`.

    :raises InvalidInputError: as :class:`TorchDistributed` does.
    """
    return group if isinstance(group, Transport) else TorchDistributed(group)
