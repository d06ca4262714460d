"""Seeds with acceptance noise close to one decision of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw_testing import reference, reference_walk

Array = NDArray[Any]

FIRST_POSITIONS: Final = (0, 7, 2**31 - 3, 2**32 - 2, 2**40 + 11)
"""First positions of requests; the rows of a request cross the border of a 32-bit word."""
_MARGIN: Final = 3 * reference.NEAR_TIE
"""Least distance of a decision from its turning point, so that float32 decides likewise."""
_STEPS: Final = 17


class AcceptanceNoise:
    """The variates u of many seeds at the positions of a request."""

    def __init__(self, rng: Generator, seeds: int) -> None:
        self.seeds: Array = rng.integers(0, 2**64, seeds, np.uint64)
        self._u: dict[int, Array] = {}

    def u(self, first: int) -> Array:
        """Return u from position ``first`` on: [seeds, 17]."""
        if first not in self._u:
            positions = np.arange(_STEPS).astype(np.uint64) + np.uint64(first)
            words = reference.random_words(self.seeds[:, None], positions, 0, reference_walk.ACCEPT)
            self._u[first] = reference.uniform(words[0])
        return self._u[first]

    def narrow(self, first: int, ratios: Sequence[float], rejected: bool, critical: int) -> int | None:
        """Find a seed that accepts by p / q = ``ratios`` and comes closest to the turning point in one step.

        :param rejected: whether the last of them is to be rejected.
        :param critical: the step that is to be narrow.
        :returns: None if no seed does so.
        """
        ratio_array = np.asarray(ratios)
        u = self.u(first)[:, : len(ratio_array)]
        is_accepted = u < ratio_array
        pattern = np.ones(len(ratio_array), bool)
        pattern[len(ratio_array) - 1] = not rejected
        gap = np.abs(u - ratio_array)
        is_usable = (is_accepted == pattern).all(1) & (gap >= _MARGIN).all(1)
        if not is_usable.any():
            return None
        return int(self.seeds[np.where(is_usable, gap[:, critical], np.inf).argmin()])
