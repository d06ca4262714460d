"""Scratch of a call: an allocation, cut into buffers by rows, requests or programs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from tokendraw_triton_gumbel.host.bounded_cache import BoundedCache
from tokendraw_triton_gumbel.host.compilation import Pointer

PER_CALL, PER_ROW, PER_REQUEST, PER_PROGRAM = range(4)
"""Indices of the counts that a buffer may grow with: 1, rows, requests, programs of the launch for large sets."""
_ALIGNMENT_BYTES = 256
_MAX_LAYOUTS = 256
"""Upper limit of cached layouts."""


class Scratch:
    """The scratch buffers of a variant."""

    def __init__(self) -> None:
        self.pointers: list[Pointer] = []
        """Placeholders of the buffers, for compilation."""
        self._counted_by: list[int] = []
        self._bytes: list[int] = []
        self._offsets: BoundedCache[tuple[int, ...], list[int]] = BoundedCache(_MAX_LAYOUTS)

    def reserve(self, dtype: torch.dtype, elements: int, per: int) -> int:
        """Reserve a buffer of so many elements for each of the count number ``per``; return its index."""
        self.pointers.append(Pointer(dtype))
        self._counted_by.append(per)
        self._bytes.append(elements * dtype.itemsize)
        return len(self.pointers) - 1

    def reserve_group(self, buffers: Sequence[tuple[torch.dtype, int, int]]) -> slice:
        """Reserve several buffers; return the slice of their indices."""
        first = len(self.pointers)
        for buffer in buffers:
            self.reserve(*buffer)
        return slice(first, len(self.pointers))

    def offsets(self, counts: tuple[int, ...]) -> list[int]:
        """Compute the offset of each buffer in an allocation, and at the end the bytes of the allocation."""
        offsets = self._offsets.get(counts)
        if offsets is None:
            buffers = zip(self._bytes, self._counted_by, strict=True)
            sizes = [
                -(-nbytes * counts[per] // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for nbytes, per in buffers
            ]
            offsets = self._offsets.add(counts, list(accumulate(sizes, initial=0)))
        return offsets

    def buffer(self, index: int, memory: Tensor, offset: int, count: int) -> Tensor:
        """Return the first ``count`` parts of a buffer at an offset in ``memory`` [bytes] uint8: [elements]."""
        return memory[offset : offset + self._bytes[index] * count].view(self.pointers[index].dtype)

    def buffers(self, memory: Tensor, counts: tuple[int, ...]) -> list[Tensor]:
        """Return all buffers, [elements] each."""
        places = zip(self.offsets(counts), self._counted_by, strict=False)
        return [self.buffer(i, memory, offset, counts[per]) for i, (offset, per) in enumerate(places)]
