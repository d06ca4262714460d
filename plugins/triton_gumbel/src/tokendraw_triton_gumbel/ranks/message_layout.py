"""Where the fields of a rank's messages lie among the words that a kernel writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_REAL, _WHOLE = torch.float32, torch.int32


class Field(NamedTuple):
    """A field of a message: [rows, columns]."""

    name: str
    columns: int
    dtype: torch.dtype

    @property
    def words(self) -> int:
        """Return the number of words of a row."""
        return self.columns * self.dtype.itemsize // _WHOLE.itemsize


class Words:
    """The words of a message, [rows, width] int32.

    Fields lie in the order in which they are given, so that they can be sent as they are; where there are any of 8
    bytes, these come first, since PyTorch reads them at even words alone.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        ordered = sorted(fields, key=lambda field: -field.dtype.itemsize)
        is_wide = ordered[0].dtype.itemsize > _WHOLE.itemsize
        self.places: dict[str, int] = {}
        """The first word of each field."""
        place = 0
        for field in ordered:
            self.places[field.name] = place
            place += field.words
        self.width = place + (place % 2 if is_wide else 0)
        self._fields = tuple(fields)

    def place(self, name: str) -> int:
        """Return the first word of a field, -1 if there is none of this name."""
        return self.places.get(name, -1)

    def columns(self, name: str) -> int:
        """Return the columns of a field, 0 if there is none of this name."""
        return next((field.columns for field in self._fields if field.name == name), 0)

    def views(self, words: Tensor) -> dict[str, Tensor]:
        """Return the fields by name, [rows, columns] each."""
        by_type = {dtype: words.view(dtype) for dtype in {field.dtype for field in self._fields}}
        found = {}
        for name, columns, dtype in self._fields:
            first = self.places[name] * _WHOLE.itemsize // dtype.itemsize
            found[name] = by_type[dtype][:, first : first + columns]
        return found


def words_of_argmax() -> Words:
    """Lay out what :meth:`tokendraw.vocab_parallel.LocalLogits.argmax` returns."""
    return Words([Field("max", 1, _REAL), Field("has_nan", 1, _WHOLE), Field("ids", 1, _WHOLE)])


def words_of_survey(count: int, masses: int, *, fresh: bool) -> Words:
    """Lay out the fields of :class:`tokendraw.vocab_parallel.Survey`."""
    fields = [Field("x", count, _REAL), Field("ties", 1, _WHOLE)]
    if masses:
        fields.append(Field("mass", masses, torch.float64))
    if fresh:
        fields.append(Field("fresh", 1, torch.int64))
    return Words(fields)


def words_of_draws(*, fp64: bool, described: bool) -> Words:
    """Lay out the fields of :class:`tokendraw.vocab_parallel.Draws` but for the best tokens."""
    real = torch.float64 if fp64 else _REAL
    fields = [
        Field("max", 1, _REAL),
        Field("has_nan", 1, _WHOLE),
        Field("score", 1, real),
        Field("ids", 3, _WHOLE),
        Field("log_sum", 2, real),
        Field("key", 2, real),
    ]
    if described:
        fields.append(Field("x", 3, _REAL))
        fields += [Field(name, 1, torch.float64) for name in ("kept", "mass", "raw")]
    return Words(fields)
