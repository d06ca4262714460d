"""Splits of a vocabulary over ranks: even splits, odd splits, and splits through tiles and ties."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from tokendraw.philox import TILE_SIZE


@dataclass(frozen=True)
class VocabSplit:
    """First ids of the ranks, and the end of the last rank."""

    name: str
    """Name of the split in messages."""
    bounds: tuple[int, ...]
    """[R + 1], ascending from 0 to V."""

    def __str__(self) -> str:
        sizes = " + ".join(str(end - start) for start, end in pairwise(self.bounds))
        return f"{self.name} ({sizes})"

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.bounds) - 1

    def of(self, logits: torch.Tensor) -> list[torch.Tensor]:
        """Return the logits [B, n] of each rank, as columns of a buffer that continues behind the last id.

        A head that is padded leaves such rows. What stands there would win every row, if it were read.
        """
        parts = []
        for start, end in pairwise(self.bounds):
            buffer = logits.new_full((len(logits), end - start + 1 + start % 7), float("inf"))
            buffer[:, : end - start] = logits[:, start:end]
            parts.append(buffer[:, : end - start])
        return parts


def splits(vocab_size: int) -> list[VocabSplit]:
    """List the splits of a vocabulary over at least two ranks; some ranks may be empty."""
    v, tile = vocab_size, TILE_SIZE
    thirds = (v // 3, 2 * v // 3)
    tile_start = (v - 1) // tile * tile // 2 // tile * tile  # the first id of a tile in the middle
    width = min(tile, v - tile_start)
    choices = [
        VocabSplit("two halves", (0, -(-v // 2), v)),
        VocabSplit("odd sizes", (0, *(thirds[0] | 1, thirds[1] | 1), v) if v > 5 else (0, 1, v)),
        VocabSplit(
            "a tile over three ranks and more", (0, *(tile_start + width * i // 5 for i in (1, 2, 4)), v)
        ),
        VocabSplit("empty ranks", (0, 0, thirds[1], thirds[1], v, v)),
        VocabSplit("one id on a rank", (0, v - 1, v) if v > 1 else (0, 0, v)),
    ]
    if v > tile:
        choices.append(VocabSplit("whole tiles", (0, *range(tile, v, -(-v // 4 // tile) * tile), v)))
    return choices
