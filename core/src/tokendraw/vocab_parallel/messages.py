"""Packs a rank's message about each row into words of 4 bytes, for a single gather."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from tokendraw.vocab_parallel.transport import Transport

_Message = TypeVar("_Message", bound=tuple[Any, ...])
_WORD_BYTES = 4


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
