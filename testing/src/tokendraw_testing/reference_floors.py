"""Floors of the filters from moments that tokendraw ships, in float64 with numpy alone. Imports no tokendraw.

A row is given by its distinct values: how far each lies below the largest, and how many tokens have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

EDGE = 1e-5
"""Levels closer to a floor than this are left to float32, in which samplers pass moments to filters."""


class Moments(NamedTuple):
    """Moments of y over the finite logits of a row, as :class:`tokendraw.filters.RowMoments`, in float64.

    :ivar number: ``RowMoments.count``, which is a method of tuples.
    """

    number: float
    mean: float
    std: float
    log_mass: float
    entropy: float
    collision: float


_given: dict[str, Callable[[float, Moments], float]] = {}


def moments(depths: Array, counts: Array) -> Moments:
    """Compute the moments of a row with ``counts`` tokens at ``depths`` below the largest."""
    is_finite = depths < np.inf
    y, weights = -depths[is_finite], counts[is_finite]
    mean = (y * weights).sum() / weights.sum()
    variance = ((y - mean) ** 2 * weights).sum() / weights.sum()
    log_mass = float(np.log((np.exp(y) * weights).sum()))
    p = np.exp(y - log_mass)
    return Moments(
        number=float(weights.sum()),
        mean=float(mean),
        std=float(np.sqrt(variance)),
        log_mass=log_mass,
        entropy=float((p * weights * (log_mass - y)).sum()),
        collision=float((p * p * weights).sum()),
    )


def floor_depth(depths: Array, counts: Array, filters: Mapping[str, float]) -> float:
    """Return how far below the largest logit the highest floor of a request lies; inf without any."""
    row = moments(depths, counts)
    floors = [_floor(name, float(np.float32(value)), row) for name, value in filters.items()]
    return max(0.0, -max(floors, default=-np.inf))


@contextmanager
def given_floor(name: str, floor: Callable[[float, Moments], float]) -> Iterator[None]:
    """Take the floor of a filter that tokendraw does not ship from a function of its value and float64 moments."""
    _given[name] = floor
    try:
        yield
    finally:
        del _given[name]


def levels_near(depths: Array, depth: float) -> tuple[int, int]:
    """Range of levels within ``EDGE`` of a floor, from the first below the largest to behind the last."""
    if depth == np.inf:
        return 0, 0
    slack = EDGE * max(1.0, depth)
    first = max(1, int(depths.searchsorted(depth - slack)))
    return first, max(first, int(depths.searchsorted(depth + slack, "right")))


def _floor(name: str, value: float, row: Moments) -> float:
    """Return the floor of a filter."""
    if name in _given:
        return _given[name](value, row)
    if value == 0:  # off
        return -np.inf
    if name == "top_n_sigma":
        return -value * row.std
    if name == "epsilon_cutoff":
        return float(np.log(value)) + row.log_mass
    if name == "eta_cutoff":
        return float(np.log(min(value, np.sqrt(value) * np.exp(-row.entropy)))) + row.log_mass
    if name == "p_less":
        return float(np.log(row.collision)) + row.log_mass
    raise ValueError(f"'filters' needs filters that tokendraw ships, found {name!r}.")
