"""The seeds of a call's rows, which may still be on their way from rank 0."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tokendraw import philox
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel.transport import Wait


class Seeds(NamedTuple):
    """Holds what the random numbers of each row come from, the same on every rank: [B, 1] int64.

    :ivar seed: Seed of each row, its 64 bits as a signed number.
    :ivar position: Position of each row in its sequence.
    """

    seed: Tensor
    position: Tensor


class RowSeeds:
    """The seeds of the rows of one call: their own, and of rows without one those that rank 0 drew."""

    def __init__(self, metadata: SamplingMetadata, rows: Tensor, fresh: Tensor | None, wait: Wait) -> None:
        """Hold what is known of them.

        :param rows: [B, ...] on their device.
        :param fresh: [B, 1] int64, filled once ``wait`` was called; None: every row has a seed.
        """
        self._metadata = metadata
        self._rows = rows
        self._fresh = fresh
        self._wait: Wait | None = wait

    def fresh(self) -> Tensor | None:
        """Return the seeds of rows without one, [B] int64, once they are there; None: every row has its own.

        It is all that a kernel needs which reads the metadata itself.
        """
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        return None if self._fresh is None else self._fresh.squeeze(-1)

    def __call__(self) -> Seeds:
        """Return the seed and position of every row, once they are there."""
        rows, device = len(self._rows), self._rows.device
        found = philox.seeds_and_positions(self._metadata, rows, device, self.fresh())
        return Seeds(*(column.unsqueeze(-1) for column in found))
