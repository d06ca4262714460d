"""Messages between ranks: their transport by torch.distributed, and a rank's message about each row, in one gather."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor

from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.errors.formatting import type_name

_Message = TypeVar("_Message", bound=tuple[Any, ...])
_WORD_BYTES = 4
Wait: TypeAlias = Callable[[], object]
"""Returns when what was begun is done, or, on a device with streams, is ordered before what is launched next."""


@runtime_checkable
class Transport(Protocol):
    """A rank's side of a group. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Return the number of this rank in the group."""

    @property
    def size(self) -> int:
        """Return the number of ranks."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Return [R, ...], the contiguous tensors [...] of all ranks in rank order."""

    def all_sum(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor of integers by its sum over all ranks."""

    def broadcast_from_first(self, tensor: Tensor) -> Wait:
        """Begin to replace a contiguous tensor by the tensor of rank 0."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the picklable values of all ranks in rank order, through the host."""


class _TorchDistributed:
    """The ranks of a torch.distributed process group: NCCL on GPUs, gloo on CPUs."""

    def __init__(self, group: Any) -> None:
        """Join the ranks of a ``ProcessGroup``; None: the default group."""
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
        gathered = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        if tensor.numel():  # the ranks of an empty batch have nothing to say
            self._gather(gathered.view(-1), tensor.view(-1), group=self._group)
        return gathered

    def all_sum(self, tensor: Tensor) -> None:
        if tensor.numel():
            self._dist.all_reduce(tensor, group=self._group)

    def broadcast_from_first(self, tensor: Tensor) -> Wait:
        if not tensor.numel():
            return lambda: None
        work = self._dist.broadcast(tensor, self._first, group=self._group, async_op=True)
        wait: Wait = work.wait
        return wait

    def gather_objects(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=self._group)
        return values


def transport_of(group: Any) -> Transport:
    """Return the transport of a group that this process is a rank of, or the group itself if it is one."""
    return group if isinstance(group, Transport) else _TorchDistributed(group)


@dataclass(frozen=True, slots=True)
class Received(Generic[_Message]):
    """The messages of all ranks about the rows of a call.

    :ivar words: [R, B, W] int32, contiguous, in rank order.
    :ivar sent: Message of this rank: a NamedTuple of tensors [B, n], or None.
    :ivar offsets: Index of the first word of each field in a row; -1 for an absent field.
    """

    words: Tensor
    sent: _Message
    offsets: tuple[int, ...]

    def tensors(self) -> _Message:
        """Return the fields of all ranks, [R, B, n] each."""
        kind: Any = type(self.sent)
        fields = zip(self.sent, self.offsets, strict=True)
        return kind(*[None if field is None else self._field(field, first) for field, first in fields])  # type: ignore[no-any-return]

    def _field(self, field: Tensor, first: int) -> Tensor:
        part = self.words[..., first : first + _words(field)]
        if field.element_size() > _WORD_BYTES:
            # Of one rank and one row any part counts as contiguous, wherever its words begin: a clone begins anew.
            part = part.clone(memory_format=torch.contiguous_format)
        return part.view(field.dtype)


def exchange(transport: Transport, message: _Message) -> Received[_Message]:
    """Gather a NamedTuple of tensors [B, n] of 4 or 8 bytes an element, or None, by a single gather.

    Fields stored as columns of a single buffer, with a field at the start of its rows, are sent as the whole buffer.
    Others are packed.
    """
    words, offsets = _in_one_buffer(message) or _packed(message)
    return Received(transport.all_gather(words), message, offsets)


def _in_one_buffer(message: tuple[Tensor | None, ...]) -> tuple[Tensor, tuple[int, ...]] | None:
    """Return a buffer [B, W] int32 with all fields as columns, and their offsets; None for fields in several."""
    first = min((column for column in message if column is not None), key=torch.Tensor.data_ptr)
    begin, width = first.data_ptr(), first.stride(0) * first.element_size()
    storage = first.untyped_storage()
    if (
        not first.numel()
        or width % _WORD_BYTES
        or begin + len(first) * width > storage.data_ptr() + storage.nbytes()
    ):
        return None
    offsets = []
    for column in message:
        if column is None:
            offsets.append(-1)
            continue
        offset = column.data_ptr() - begin
        is_inside = 0 <= offset <= width - _words(column) * _WORD_BYTES
        is_beside = column.stride(0) * column.element_size() == width and column.stride(1) == 1
        if not (is_inside and is_beside and column.untyped_storage().data_ptr() == storage.data_ptr()):
            return None
        offsets.append(offset // _WORD_BYTES)
    shape = len(first), width // _WORD_BYTES
    return first.view(torch.int32).as_strided(shape, (shape[1], 1)), tuple(offsets)


def _packed(message: tuple[Tensor | None, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Copy the fields into a new buffer, end to end."""
    words = torch.cat([column.contiguous().view(torch.int32) for column in message if column is not None], -1)
    offsets, end = [], 0
    for column in message:
        offsets.append(-1 if column is None else end)
        end += 0 if column is None else _words(column)
    return words, tuple(offsets)


def _words(column: Tensor) -> int:
    return column.shape[-1] * column.element_size() // _WORD_BYTES
