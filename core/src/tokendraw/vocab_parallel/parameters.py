"""The parameters of rows, as a sampler in plain torch holds them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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
