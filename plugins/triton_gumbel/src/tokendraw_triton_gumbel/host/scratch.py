"""Scratch of a call: one allocation, cut into pieces that grow with the number of rows, of requests, or of programs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from tokendraw_triton_gumbel.host.compilation import Pointer

CALL, ROWS, REQUESTS, PROGRAMS = range(4)
"""The counts that a piece may grow with: 1, rows, requests, programs of the launch for large sets."""
_ALIGNED = 256
_MOST_PLACES = 256
"""Most counts that are remembered."""


class Places(Protocol):
    """Where the scratch of a call lies."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the counts that it is laid out for."""

    @property
    def offsets(self) -> list[int]:
        """Return what :meth:`Scratch.offsets` does of them."""


class Scratch:
    """The pieces of scratch of one variant of a call."""

    def __init__(self) -> None:
        self.pointers: list[Pointer] = []
        """Stand-ins for each piece where kernels are compiled."""
        self._of: list[int] = []
        self._bytes: list[int] = []
        self._offsets: dict[tuple[int, ...], list[int]] = {}

    def reserve(self, dtype: torch.dtype, each: int, of: int) -> int:
        """Ask for ``each`` elements for every one of the count number ``of``; returns the number of the piece."""
        self.pointers.append(Pointer(dtype))
        self._of.append(of)
        self._bytes.append(each * dtype.itemsize)
        return len(self.pointers) - 1

    def reserve_group(self, pieces: Sequence[tuple[torch.dtype, int, int]]) -> slice:
        """Ask for several pieces; returns where they are among all."""
        first = len(self.pointers)
        for piece in pieces:
            self.reserve(*piece)
        return slice(first, len(self.pointers))

    def offsets(self, counts: tuple[int, ...]) -> list[int]:
        """Compute the offset of each piece in an allocation, for these counts, and at the end its number of bytes."""
        found = self._offsets.get(counts)
        if found is None:
            each = zip(self._bytes, self._of, strict=True)
            sizes = [-(-nbytes * counts[of] // _ALIGNED) * _ALIGNED for nbytes, of in each]
            if len(self._offsets) >= _MOST_PLACES:
                self._offsets.clear()
            found = self._offsets[counts] = list(accumulate(sizes, initial=0))
        return found

    def piece(self, number: int, memory: Tensor, offset: int, count: int) -> Tensor:
        """The piece that lies at ``offset`` in ``memory`` [bytes] uint8, [elements], of the first ``count``."""
        return memory[offset : offset + self._bytes[number] * count].view(self.pointers[number].dtype)

    def pieces(self, memory: Tensor, counts: tuple[int, ...]) -> list[Tensor]:
        """All pieces, each of one dimension."""
        places = zip(self.offsets(counts), self._of, strict=False)
        return [self.piece(i, memory, offset, counts[of]) for i, (offset, of) in enumerate(places)]
