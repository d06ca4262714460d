"""The parameters of a batch for ranks: :class:`RowParameters`, or the same read when they are first used."""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.row_parameters import (
    FilterColumns,
    RowParameters,
    Temperatures,
    clamped_filters,
    filter_columns,
)


class MetadataParameters:
    """The fields of :class:`RowParameters`, read when temperatures or filters are first used.

    For samplers whose kernels read the metadata, so that they launch nothing for parameters without a use.

    :ivar max_top_k: Largest active k; None: unknown.
    :ivar all_top_k: Whether every row is greedy or has an active k.
    """

    def __init__(self, metadata: SamplingMetadata, rows: int, device: torch.device) -> None:
        self.max_top_k, self.all_top_k = metadata.facts.max_top_k, metadata.facts.all_top_k
        self._metadata = metadata
        self._rows = rows
        self._device = device

    @cached_property
    def _temperatures(self) -> Temperatures:
        return Temperatures.of(self._metadata, self._rows, self._device)

    @cached_property
    def _filters(self) -> FilterColumns:
        return clamped_filters(filter_columns(self._metadata), self._device)

    @property
    def temperature(self) -> Tensor:
        """Return the temperatures."""
        return self._temperatures.temperature

    @property
    def inverse_temperature(self) -> Tensor:
        """Return the reciprocals of the temperatures."""
        return self._temperatures.inverse_temperature

    @property
    def greedy(self) -> Tensor | None:
        """Return the greedy rows."""
        return self._temperatures.greedy

    @property
    def top_k(self) -> Tensor | None:
        """Return k."""
        return self._filters.top_k

    @property
    def top_p(self) -> Tensor | None:
        """Return p."""
        return self._filters.top_p

    @property
    def min_p(self) -> Tensor | None:
        """Return min-p."""
        return self._filters.min_p

    @property
    def joint(self) -> Tensor | None:
        """Return the rows whose top-p counts the unfiltered mass."""
        return self._filters.joint


Parameters: TypeAlias = RowParameters | MetadataParameters
