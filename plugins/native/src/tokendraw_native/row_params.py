"""The parameters of each row, clamped to their valid ranges; None for a parameter that no row uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw import SamplingMetadata, philox
from tokendraw.plugin import GumbelDtype
from tokendraw.probabilities import PerRow
from tokendraw.vocab_parallel import MetadataParameters


@dataclass(frozen=True, slots=True)
class RowParams(PerRow):
    """Sampling parameters [rows, 1] on the device of the logits."""

    temperature: Tensor
    """Positive and finite; 1 in greedy rows."""
    inverse_temperature: Tensor
    """1 / temperature, clamped so that it is finite and 0 times it is 0."""
    greedy: Tensor | None
    """bool."""
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    joint: Tensor | None
    """bool."""
    max_top_k: int | None
    """Largest active k; None: unknown."""
    all_top_k: bool

    @classmethod
    def of(cls, metadata: SamplingMetadata, rows: int, device: torch.device) -> RowParams:
        """Read the parameters of a batch of ``rows`` rows."""
        read = MetadataParameters(metadata, rows, device)
        return cls(
            temperature=read.temperature,
            inverse_temperature=read.inverse_temperature,
            greedy=read.greedy,
            top_k=read.top_k,
            top_p=read.top_p,
            min_p=read.min_p,
            joint=read.joint,
            max_top_k=read.max_top_k,
            all_top_k=read.all_top_k,
        )

    @property
    def filters(self) -> bool:
        """Whether a row may drop tokens."""
        tensors = (self.greedy, self.top_k, self.top_p, self.min_p)
        return any(tensor is not None for tensor in tensors)


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

    def uniform(self, stream: int, dtype: GumbelDtype) -> Tensor:
        """Return uniform variates in (0, 1) at index 0: [rows, 1]."""
        return philox.uniform(self.seed, self.position, torch.zeros_like(self.position), stream, dtype)
