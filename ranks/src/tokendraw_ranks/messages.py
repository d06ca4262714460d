"""Messages between ranks: the fields of all rows in one buffer, gathered at once by torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

import tokendraw

Wait = Callable[[], object]
"""Returns when what was begun is done, or, on a device with streams, is ordered before what is launched next."""


@runtime_checkable
class Transport(Protocol):
    """A rank's side of a group. Every rank makes the same calls in the same order, of contiguous tensors.

    ``all_gather`` returns [R, ...], the tensors of all ranks in their order; ``all_sum`` replaces integers by their sum
    over all ranks, ``broadcast_from_first`` a tensor by that of rank 0, as its result waits for; ``gather_objects``
    returns the picklable values of all ranks, through the host.
    """

    rank: int
    size: int

    def all_gather(self, tensor: Tensor) -> Tensor: ...
    def all_sum(self, tensor: Tensor) -> None: ...
    def broadcast_from_first(self, tensor: Tensor) -> Wait: ...
    def gather_objects(self, value: Any) -> list[Any]: ...


class ProcessGroup:
    """The :class:`Transport` of a torch.distributed process group: NCCL on GPUs, gloo on CPUs."""

    def __init__(self, group: Any) -> None:
        """Join the ranks of a ``ProcessGroup``; None: the default group."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise tokendraw.InvalidInputError(
                "'shard' needs the ranks of a torch.distributed process group, found none. "
                "Call torch.distributed.init_process_group first."
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise tokendraw.InvalidInputError(
                f"'group' of a VocabShard needs a torch.distributed process group of which this process is a rank, "
                f"found {type(group).__name__}. Pass what torch.distributed.new_group returned here, or None."
            )
        self._dist, self._group = dist, group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self._first: int = 0 if group is None else dist.get_global_rank(group, 0)
        # torch 2.13 renamed it, and warns of the name that earlier versions have alone.
        self._gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        gathered = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        self._gather(gathered.view(-1), tensor.view(-1), group=self._group)
        return gathered

    def all_sum(self, tensor: Tensor) -> None:
        self._dist.all_reduce(tensor, group=self._group)

    def broadcast_from_first(self, tensor: Tensor) -> Wait:
        work = self._dist.broadcast(tensor, self._first, group=self._group, async_op=True)
        wait: Wait = work.wait
        return wait

    def gather_objects(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=self._group)
        return values


def transport_of(group: Any) -> Transport:
    """Return the transport of a group that this process is a rank of, or the group itself if it is one."""
    return group if isinstance(group, Transport) else ProcessGroup(group)


class Message:
    """The fields of a rank's message in one buffer of words of 4 bytes, those of 8 bytes first.

    Each field is contiguous in it, so that kernels write it, and what was gathered is read, without a copy.
    """

    def __init__(
        self, device: torch.device, fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    ) -> None:
        """Allocate the fields, by name: shape, and a dtype of 4 or 8 bytes."""
        self._places: dict[str, tuple[slice, tuple[int, ...], torch.dtype]] = {}
        end = 0
        for name, (shape, dtype) in sorted(fields.items(), key=lambda field: -field[1][1].itemsize):
            start, end = end, end + torch.Size(shape).numel() * dtype.itemsize // 4
            self._places[name] = slice(start, end), shape, dtype
        self.words = torch.empty(end + end % 2, dtype=torch.int32, device=device)

    def views(self, words: Tensor | None = None) -> dict[str, Tensor]:
        """Return the fields by name, or those of all ranks [R, ...] in ``words`` [R, n]."""
        words = self.words if words is None else words
        ranks = words.shape[:-1]
        return {
            name: words[..., place].view(dtype).view(*ranks, *shape)
            for name, (place, shape, dtype) in self._places.items()
        }
