"""Splits of a vocabulary over ranks: even ones, odd ones, and those that cut tiles and ties."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from tokendraw.philox import TILE_SIZE


@dataclass(frozen=True)
class Split:
    """The first ids of the ranks, and the end of the last."""

    name: str
    """Says in words what is special about it."""
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
        """Return the logits [B, n] of each rank, in a storage of its own that goes on behind the last id.

        A head that is padded leaves such rows. What stands there would win every row, if it were read.
        """
        parts = []
        for start, end in pairwise(self.bounds):
            wide = logits.new_full((len(logits), end - start + 1 + start % 7), float("inf"))
            wide[:, : end - start] = logits[:, start:end]
            parts.append(wide[:, : end - start])
        return parts


def splits(vocab_size: int) -> list[Split]:
    """List the splits of a vocabulary; each has at least two ranks, of which some may be empty."""
    v, tile = vocab_size, TILE_SIZE
    third = (v // 3, 2 * v // 3)
    inside = (v - 1) // tile * tile // 2 // tile * tile  # the first id of a tile in the middle
    width = min(tile, v - inside)
    found = [
        Split("two halves", (0, -(-v // 2), v)),
        Split("odd sizes", (0, *(third[0] | 1, third[1] | 1), v) if v > 5 else (0, 1, v)),
        Split("a tile over three ranks and more", (0, *(inside + width * i // 5 for i in (1, 2, 4)), v)),
        Split("empty ranks", (0, 0, third[1], third[1], v, v)),
        Split("one id on a rank", (0, v - 1, v) if v > 1 else (0, 0, v)),
    ]
    if v > tile:
        found.append(Split("whole tiles", (0, *range(tile, v, -(-v // 4 // tile) * tile), v)))
    return found
