"""The parameters and seeds of a batch for ranks, read when they are first used."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from torch import Tensor

from tokendraw import philox
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.row_parameters import MetadataParameters, RowParameters
from tokendraw.vocab_parallel.messages import Wait

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

    def __init__(
        self, metadata: SamplingMetadata, rows: Tensor, fresh: Tensor | None, wait: Wait | None
    ) -> None:
        """Hold the arguments until the seeds are needed; ``wait`` fills ``fresh``, [B, 1] int64 or None."""
        self._metadata = metadata
        self._rows = rows
        self._fresh = fresh
        self._wait = wait

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
