"""The layout of a rank's messages: the first word of each field."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from tokendraw.vocab_parallel import MomentSum

_WORD = torch.int32


class MessageField(NamedTuple):
    """A field of a message: [rows, columns]."""

    name: str
    columns: int
    dtype: torch.dtype

    @property
    def words(self) -> int:
        """Return the number of words of a row."""
        return self.columns * self.dtype.itemsize // _WORD.itemsize


class MessageLayout:
    """The layout of a message, [rows, width] int32.

    Fields lie in the order in which they are given, so that they can be sent as they are; where there are any of 8
    bytes, these come first, since PyTorch reads them at even words alone.
    """

    def __init__(self, fields: Sequence[MessageField]) -> None:
        ordered = sorted(fields, key=lambda field: -field.dtype.itemsize)
        has_double_words = ordered[0].dtype.itemsize > _WORD.itemsize
        self.places: dict[str, int] = {}
        """The first word of each field."""
        place = 0
        for field in ordered:
            self.places[field.name] = place
            place += field.words
        self.width = place + (place % 2 if has_double_words else 0)
        self._fields = tuple(fields)

    def place(self, name: str) -> int:
        """Return the first word of a field, -1 if the message lacks the field."""
        return self.places.get(name, -1)

    def columns(self, name: str) -> int:
        """Return the columns of a field, 0 if the message lacks the field."""
        return next((field.columns for field in self._fields if field.name == name), 0)

    def views(self, words: Tensor) -> dict[str, Tensor]:
        """Return the fields of a message by name, [rows, columns] each."""
        by_dtype = {dtype: words.view(dtype) for dtype in {field.dtype for field in self._fields}}
        fields = {}
        for name, columns, dtype in self._fields:
            first = self.places[name] * _WORD.itemsize // dtype.itemsize
            fields[name] = by_dtype[dtype][:, first : first + columns]
        return fields


def argmax_layout() -> MessageLayout:
    """Lay out the fields of :class:`tokendraw.vocab_parallel.Argmax`."""
    return MessageLayout(
        [
            MessageField("max", 1, torch.float32),
            MessageField("has_nan", 1, torch.int32),
            MessageField("ids", 1, torch.int32),
        ]
    )


def sum_bits(sums: Collection[MomentSum]) -> int:
    """Return the bits of :mod:`.kernels.shared.moment_bits` for sums behind moments."""
    return sum(1 << i for i, name in enumerate(get_args(MomentSum)) if name in sums)


def survey_layout(count: int, masses: int, num_sums: int, *, has_fresh_seeds: bool) -> MessageLayout:
    """Lay out the fields of :class:`tokendraw.vocab_parallel.Survey`."""
    fields = [MessageField("x", count, torch.float32), MessageField("ties", 1, torch.int32)]
    if masses:
        fields.append(MessageField("mass", masses, torch.float64))
    if has_fresh_seeds:
        fields.append(MessageField("fresh", 1, torch.int64))
    if num_sums:
        fields.append(MessageField("sums", num_sums, torch.float64))
    return MessageLayout(fields)


def draws_layout(*, fp64: bool, has_logprobs: bool) -> MessageLayout:
    """Lay out the fields of :class:`tokendraw.vocab_parallel.Draws` but for the best tokens."""
    real = torch.float64 if fp64 else torch.float32
    fields = [
        MessageField("max", 1, torch.float32),
        MessageField("has_nan", 1, torch.int32),
        MessageField("score", 1, real),
        MessageField("ids", 3, torch.int32),
        MessageField("log_sum", 2, real),
        MessageField("key", 2, real),
    ]
    if has_logprobs:
        fields.append(MessageField("x", 3, torch.float32))
        fields += [MessageField(name, 1, torch.float64) for name in ("kept", "mass", "raw")]
    return MessageLayout(fields)
