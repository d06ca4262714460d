"""Synchronizes ranks for timing: calls begin at the same time, and the slowest rank's time counts.

All ranks make the same number of calls, since a collective waits for all of them. A call that raises on some ranks
ends the run at the timeout of the process group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class RankGroup(Protocol):
    """Ranks that make each call at the same time."""

    def wait(self) -> None:
        """Wait for all ranks."""

    def maximum(self, number: float) -> float:
        """Return the largest number of all ranks."""


class SingleRank:
    """A process by itself."""

    def wait(self) -> None:
        """Go on at once."""

    def maximum(self, number: float) -> float:
        """Return the number."""
        return number


class DistributedRanks:
    """The ranks of the default process group of torch.distributed.

    :param device: where their tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._number = torch.zeros(1, dtype=torch.float64, device=device)

    def wait(self) -> None:
        """Wait for all ranks and their devices."""
        self.maximum(0.0)

    def maximum(self, number: float) -> float:
        """Return the largest number of all ranks, after a wait for them."""
        import torch.distributed as dist

        self._number.fill_(number)
        dist.all_reduce(self._number, op=dist.ReduceOp.MAX)
        return float(self._number)
