"""The parameters of rows, as computations in plain torch take them."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from tokendraw.parameters.metadata import SamplingMetadata


class RowParameters(Protocol):
    """Sampling parameters [B, 1] on the device of the logits, clamped to their ranges; None where no row has one."""

    @property
    def temperature(self) -> Tensor:
        """Return positive and finite temperatures in the widest float; 1 in greedy rows."""
        ...

    @property
    def inverse_temperature(self) -> Tensor:
        """Return finite reciprocals of them."""
        ...

    @property
    def greedy(self) -> Tensor | None:
        """Return which rows are greedy, bool."""
        ...

    @property
    def top_k(self) -> Tensor | None:
        """Return k, int64; 0 and below, and V and above, are off."""
        ...

    @property
    def max_top_k(self) -> int | None:
        """Return the largest active k; None where the host does not know it."""
        ...

    @property
    def all_top_k(self) -> bool:
        """Return whether every row is greedy or has an active k."""
        ...

    @property
    def top_p(self) -> Tensor | None:
        """Return p; 1 and above is off."""
        ...

    @property
    def min_p(self) -> Tensor | None:
        """Return min-p; 0 and below, and NaN, are off."""
        ...

    @property
    def joint(self) -> Tensor | None:
        """Return which rows count the unfiltered mass, bool."""
        ...


class Filters(NamedTuple):
    """Says which filters the host cannot rule out."""

    top_k: bool
    top_p: bool
    min_p: bool
    joint: bool

    @classmethod
    def of(cls, metadata: SamplingMetadata) -> Self:
        """Read what a batch may ask for."""
        facts = metadata.facts
        return cls(
            metadata.top_k is not None and facts.max_top_k != 0,
            metadata.top_p is not None and facts.any_top_p,
            metadata.min_p is not None and facts.any_min_p,
            metadata.joint is not None and facts.any_joint,
        )


class MetadataParameters:
    """The :class:`RowParameters` of a batch, each clamped when it is first asked for.

    For samplers whose kernels read the metadata, so that they launch nothing for what they do not need.
    """

    def __init__(self, metadata: SamplingMetadata, rows: int, device: torch.device) -> None:
        self._metadata = metadata
        self._filters = Filters.of(metadata)
        self._rows = rows
        self._device = device
        self._real = torch.float32 if device.type == "mps" else torch.float64
        self._most = torch.finfo(self._real).max

    @cached_property
    def _given(self) -> Tensor:
        """Temperatures as they were given."""
        found = self._metadata.per_row("temperature")
        if found is None:
            return torch.ones(self._rows, 1, dtype=self._real, device=self._device)
        return found.to(self._real).unsqueeze(-1)

    @cached_property
    def greedy(self) -> Tensor | None:
        """Return which rows are greedy."""
        return ~(self._given > 0) if self._metadata.facts.any_greedy else None  # 0, below, and NaN

    @cached_property
    def temperature(self) -> Tensor:
        """Return the temperatures."""
        greedy = self.greedy
        found = self._given if greedy is None else torch.where(greedy, 1.0, self._given)
        return found.clamp(max=self._most)

    @cached_property
    def inverse_temperature(self) -> Tensor:
        """Return their reciprocals."""
        return self.temperature.reciprocal().clamp_(max=self._most)

    @cached_property
    def top_k(self) -> Tensor | None:
        """Return k."""
        return self._column("top_k", torch.int64, wanted=self._filters.top_k)

    @property
    def max_top_k(self) -> int | None:
        """Return the largest active k."""
        return self._metadata.facts.max_top_k

    @property
    def all_top_k(self) -> bool:
        """Return whether every row is greedy or has an active k."""
        return self._metadata.facts.all_top_k

    @cached_property
    def top_p(self) -> Tensor | None:
        """Return p."""
        found = self._column("top_p", self._real, wanted=self._filters.top_p)
        return None if found is None else found.nan_to_num(nan=1.0)

    @cached_property
    def min_p(self) -> Tensor | None:
        """Return min-p."""
        return self._column("min_p", self._real, wanted=self._filters.min_p)

    @cached_property
    def joint(self) -> Tensor | None:
        """Return which rows count the unfiltered mass."""
        return self._column("joint", torch.bool, wanted=self._filters.joint)

    def _column(self, name: str, dtype: torch.dtype, *, wanted: bool) -> Tensor | None:
        found = self._metadata.per_row(name) if wanted else None
        return None if found is None else found.to(dtype).unsqueeze(-1)
