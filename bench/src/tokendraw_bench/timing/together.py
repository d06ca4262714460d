"""Times calls of several ranks together: they begin at the same time, and the slowest one's time counts.

All ranks make the same number of calls, since a collective waits for all of them. A call that raises on some of them
alone ends the run, when the process group's timeout is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Together(Protocol):
    """The ranks that make each call at the same time."""

    def meet(self) -> None:
        """Wait for all of them."""

    def most(self, number: float) -> float:
        """Return the largest of their numbers."""


class Alone:
    """A process by itself."""

    def meet(self) -> None:
        """Go on at once."""

    def most(self, number: float) -> float:
        """Return the number."""
        return number


class Ranks:
    """The ranks of the default process group of torch.distributed.

    :param device: where their tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._number = torch.zeros(1, dtype=torch.float64, device=device)

    def meet(self) -> None:
        """Wait for all of them, and for what their devices were given before."""
        self.most(0.0)

    def most(self, number: float) -> float:
        """Return the largest of their numbers, after a wait for all of them."""
        import torch.distributed as dist

        self._number.fill_(number)
        dist.all_reduce(self._number, op=dist.ReduceOp.MAX)
        return float(self._number)
