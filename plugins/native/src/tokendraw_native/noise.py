"""Random numbers of each row, from its seed and position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw import SamplingMetadata, philox
from tokendraw.plugin import GumbelDtype
from tokendraw.row_parameters import PerRow


@dataclass(frozen=True, slots=True)
class Noise(PerRow):
    """Seed and position of each row, [rows, 1] int64: the arguments of its random numbers."""

    seed: Tensor
    position: Tensor

    @classmethod
    def of(cls, metadata: SamplingMetadata, rows: int, device: torch.device) -> Noise:
        """Read the seeds and positions of a batch; rows without a seed get a fresh seed."""
        seed, position = philox.seeds_and_positions(metadata, rows, device)
        return cls(seed.unsqueeze(-1), position.unsqueeze(-1))

    def gumbel(self, index: Tensor, stream: int | Tensor, dtype: GumbelDtype) -> Tensor:
        """Return Gumbel variates at ``index`` [n] or [rows, n]; ``stream`` is a number or [rows, 1]."""
        return philox.gumbel(self.seed, self.position, index, stream, dtype)

    def uniform(self, stream: int, dtype: GumbelDtype, index: Tensor | None = None) -> Tensor:
        """Return uniform variates in (0, 1), [rows, 1].

        :param index: [rows] int64; None: 0.
        """
        at = torch.zeros_like(self.position) if index is None else index.unsqueeze(-1)
        return philox.uniform(self.seed, self.position, at, stream, dtype)
