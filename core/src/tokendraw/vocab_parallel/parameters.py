"""The parameters and seeds of a batch for ranks, read when they are first used."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from tokendraw import philox
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.row_parameters import (
    FilterColumns,
    RowParameters,
    Temperatures,
    clamped_filters,
    filter_columns,
)
from tokendraw.vocab_parallel.messages import Wait


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


class Seeds(NamedTuple):
    """The seed and position of each row, the same on every rank: [B, 1] int64.

    :ivar seed: Seed of each row, its 64 bits as a signed number.
    :ivar position: Position of each row in its sequence.
    """

    seed: Tensor
    position: Tensor


class RowSeeds:
    """The seeds of a call's rows: given seeds, and fresh seeds drawn by rank 0 for all other rows."""

    def __init__(self, metadata: SamplingMetadata, rows: Tensor, fresh: Tensor | None, wait: Wait) -> None:
        """Hold the arguments until the seeds are needed; ``wait`` fills ``fresh``, [B, 1] int64 or None."""
        self._metadata = metadata
        self._rows = rows
        self._fresh = fresh
        self._wait: Wait | None = wait

    def fresh(self) -> Tensor | None:
        """Wait for the seeds of unseeded rows, [B] int64, for kernels that read the metadata; None: all have one."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        return None if self._fresh is None else self._fresh.squeeze(-1)

    def __call__(self) -> Seeds:
        """Wait for the seed and position of every row."""
        rows, device = len(self._rows), self._rows.device
        columns = philox.seeds_and_positions(self._metadata, rows, device, self.fresh())
        return Seeds(*(column.unsqueeze(-1) for column in columns))
