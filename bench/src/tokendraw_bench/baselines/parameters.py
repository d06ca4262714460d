"""Parameters of a cell's rows for the baselines: tensors by row, without unused filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tokendraw import SamplerUnavailableError, SamplingMetadata
from tokendraw_bench.cells import Cell


@dataclass(frozen=True)
class BaselineParameters:
    """Parameters by row, [B]; None for a filter that no row uses."""

    temperature: Tensor
    """float32."""
    top_k: Tensor | None
    """int64; V: off."""
    top_p: Tensor | None
    """float32; 1: off."""
    min_p: Tensor | None
    """float32; 0: off."""

    def take(self, slots: Tensor) -> Self:
        """Gather the parameters of some rows."""
        top_k, top_p, min_p = (
            None if tensor is None else tensor[slots] for tensor in (self.top_k, self.top_p, self.min_p)
        )
        return type(self)(self.temperature[slots], top_k, top_p, min_p)

    @classmethod
    def of(cls, cell: Cell, metadata: SamplingMetadata) -> Self:
        """Convert the metadata of a cell, once a batch.

        :raises SamplerUnavailableError: it has rows beyond the baselines.
        """
        facts, k, p, m = metadata.facts, metadata.top_k, metadata.top_p, metadata.min_p
        unsupported = {
            "greedy rows": facts.any_greedy,
            "the filter order joint": facts.any_joint,
            "the filter order temperature_last": facts.any_temperature_last,
            "log-probabilities": facts.max_logprobs is not None,
        }
        for part, is_present in unsupported.items():
            if is_present:
                raise SamplerUnavailableError(f"it does not serve {part}")
        assert metadata.temperature is not None
        return cls(
            metadata.temperature.float(),
            torch.where(k > 0, k, cell.vocab_size).clamp(max=cell.vocab_size)
            if k is not None and facts.max_top_k
            else None,
            p.float() if p is not None and facts.any_top_p else None,
            m.float() if m is not None and facts.any_min_p else None,
        )
