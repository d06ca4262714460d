"""Applies the filters of a request to the levels of a row, in the order that it asks for, in float64 with numpy alone.

A row is given by its levels, the distinct values in descending order: how far each lies below the largest, and how many
tokens have it. Every filter keeps a range of levels. Behind them stand the floors of the filters from moments that
tokendraw ships. Nothing here imports tokendraw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

EDGE = 1e-6
"""Decisions of a filter that lie closer to its threshold than this are left to the rounding of float32."""
FLOOR_EDGE = 1e-5
"""Levels closer to a floor than this are left to float32, in which samplers pass moments to filters."""


@dataclass
class KeptLevels:
    """The levels of a row that filters have kept: from ``first`` to before ``end``."""

    depths: Array
    """[n] float64, ascending: distance of each level below the largest, at the temperature of the filters."""
    counts: Array
    """[n] int64: number of tokens of each level."""
    first: int = 0
    end: int = 0
    certain: bool = True
    """Whether float32 rounding decides none of it."""
    edges: list[float] = field(default_factory=list)
    """Depths of the last levels that filters keep."""

    @classmethod
    def of(cls, depths: Array, counts: Array, params: Any) -> KeptLevels:
        """Apply the filters of a request. A ``xtc_probability`` above 0 counts as 1."""
        kept = cls(depths, counts, end=len(depths))
        for stage in _LAST if params.filter_order == "temperature_last" else _STAGES:
            stage(kept, params)
        for depth in kept.edges:  # what lies above a kept token stays above it in float32, or ties with it
            kept.require(bool(depths[levels_near(depths, depth)[1] - 1] <= depth))
        return kept

    def require(self, is_certain: bool) -> None:
        """Count a decision as certain, or all of them as uncertain."""
        self.certain = self.certain and is_certain

    def keep_above(self, depth: float) -> None:
        """Drop the levels below a depth, but not all that are left."""
        self.end = max(self.first + 1, min(self.end, int(self.depths.searchsorted(depth, "right"))))

    def masses(self) -> Array:
        """Return the mass of each kept level, relative to a token of the first of them."""
        kept = slice(self.first, self.end)
        return np.asarray(self.counts[kept] * np.exp(self.depths[self.first] - self.depths[kept]))


def levels_near(depths: Array, depth: float, edge: float = EDGE) -> tuple[int, int]:
    """Range of levels, from the first to behind the last, within ``edge`` of a threshold."""
    slack = edge * max(1.0, depth) if depth < np.inf else 0.0
    return int(depths.searchsorted(depth - slack)), int(depths.searchsorted(depth + slack, "right"))


def _floors(kept: KeptLevels, params: Any) -> None:
    if not getattr(params, "filters", None):
        return
    depth = floor_depth(kept.depths, kept.counts, params.filters)
    kept.keep_above(depth)
    first, last = levels_near(kept.depths, depth, FLOOR_EDGE)
    kept.require(depth == np.inf or last <= max(first, 1))  # the largest is kept wherever the floor lies


def _min_p(kept: KeptLevels, params: Any) -> None:
    if not params.min_p > 0:
        return
    floor = kept.depths[kept.first] + max(-float(np.log(params.min_p)), 0.0)
    kept.keep_above(floor)
    first, last = levels_near(kept.depths, floor)
    kept.require(bool((kept.depths[first:last] == floor).all()))
    kept.edges.append(floor)


def _top_k(kept: KeptLevels, params: Any) -> None:
    if params.top_k > 0 and (cumulative_counts := kept.counts.cumsum())[-1] > params.top_k:
        depth = kept.depths[int(cumulative_counts.searchsorted(params.top_k))]
        kept.keep_above(depth)
        kept.edges.append(depth)


def _typical_p(kept: KeptLevels, params: Any) -> None:
    """Keep the levels closest to the entropy: ``-log p`` less the entropy is the depth less its mean."""
    share = getattr(params, "typical_p", 1.0)
    if not share < 1:
        return
    kept.end = max(kept.first + 1, min(kept.end, int(kept.depths.searchsorted(np.inf))))
    depths, masses = kept.depths[kept.first : kept.end], kept.masses()
    distances = np.abs(depths - (masses * depths).sum() / masses.sum())
    order = distances.argsort(kind="stable")
    shares = masses[order].cumsum() / masses.sum()
    last = min(int(shares.searchsorted(share)), len(order) - 1)
    bounds = shares.searchsorted((share - EDGE, share + EDGE))
    ascending = distances[order]
    near = np.abs(ascending - ascending[last]) <= EDGE * max(1.0, ascending[last])
    kept.require(bool(bounds[0] == bounds[1] and near.sum() == 1))
    levels = kept.first + np.flatnonzero(distances <= ascending[last])
    kept.first, kept.end = int(levels[0]), int(levels[-1]) + 1


def _top_p(kept: KeptLevels, params: Any) -> None:
    if not params.top_p < 1:
        return
    first, end = (0, len(kept.depths)) if params.filter_order == "joint" else (kept.first, kept.end)
    whole = KeptLevels(kept.depths, kept.counts, first, end)
    masses = whole.masses()
    above = masses.cumsum()[:-1] / masses.sum()
    bounds = above.searchsorted((params.top_p - EDGE, params.top_p + EDGE))
    depth = kept.depths[first + int(above.searchsorted(params.top_p))]
    kept.require(bool(bounds[0] == bounds[1]))
    kept.keep_above(depth)
    kept.edges.append(depth)


def _xtc(kept: KeptLevels, params: Any) -> None:
    """Drop the levels above the least one of probability ``xtc_threshold``, where it is not the first token."""
    if not getattr(params, "xtc_probability", 0.0) > 0:
        return
    masses = kept.masses()
    probabilities = np.exp(kept.depths[kept.first] - kept.depths[kept.first : kept.end]) / masses.sum()
    likely = int((probabilities >= params.xtc_threshold).sum())
    kept.require(not (np.abs(probabilities - params.xtc_threshold) <= EDGE).any())
    if likely:
        kept.first += likely - 1


_Stages = Sequence[Callable[[KeptLevels, Any], None]]
_STAGES: _Stages = (_floors, _min_p, _top_k, _typical_p, _top_p, _xtc)
_LAST: _Stages = (_floors, _top_k, _typical_p, _top_p, _min_p, _xtc)


@dataclass(frozen=True)
class Moments:
    """Moments of y over the finite logits of a row, as :class:`tokendraw.filters.RowMoments`, in float64."""

    count: float
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
        count=float(weights.sum()),
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


def _floor(name: str, value: float, row: Moments) -> float:
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
