"""Computes in float64 the possible tokens of a row, the uncertain tokens, and the probabilities."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import TieRule
from tokendraw_testing import reference, reference_floors

MASS_TOLERANCE: Final = 1e-5
"""A nucleus edge that is reached closer than this is left to the rounding of float32 sums."""


Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Float64 expectation of one row. All arrays are [V]."""

    y: Array
    """float64: ``(x - max x) / T``; 0 for the only token of a row that draws none."""
    kept: Array
    """bool: kept tokens; under ``exact_k`` the last group may be kept in part."""
    edge: Array
    """bool: the least likely tokens that are kept, all tied."""
    in_part: Array
    """bool: the group of which some stay, by the sampler's own choice; none under the rule ``value``."""
    share: float
    """Share of the partly kept group."""
    possible: Array
    """bool: possible tokens, with the benefit of rounding."""
    certain: bool
    """Whether no decision of a filter depends on rounding, so that ``probabilities`` are certain."""
    count: int
    """Number of kept tokens."""

    @functools.cached_property
    def masses(self) -> Array:
        """float64, largest 1. The tokens of a group that is kept in part share its mass evenly."""
        masses: Array = np.exp(np.where(self.kept, self.y, -np.inf) - self._peak)
        if self.share < 1:
            masses[self.in_part] *= self.share
        return masses

    @functools.cached_property
    def probabilities(self) -> Array:
        """float64, of sum 1."""
        return np.asarray(self.masses / self.masses.sum())

    @property
    def log_share(self) -> float:
        """Log of the kept tokens' share of the temperature-scaled mass, at most 0."""
        return min(0.0, float(self._peak + np.log(self.masses.sum() / np.exp(self.y).sum())))

    @property
    def _peak(self) -> float:
        return float(self.y[self.kept].max())


def expect(
    logits: Array | reference.SortedLogits, params: SamplingParams, tie_rule: TieRule = "value"
) -> Expectation:
    """Apply temperature and filters to one row, by groups of equal logits from the largest downwards.

    :param logits: [V], or a ``reference.SortedLogits``: its sorting is shared, with ``reference.prepare`` too.
    """
    row = reference.SortedLogits.of(logits)
    x, (levels, counts) = row.x, row.levels
    if not params.temperature > 0 or row.top == -np.inf:
        argmax_mask = np.zeros(len(x), bool)
        argmax_mask[x.argmax()] = True
        no_tokens, y = np.zeros_like(argmax_mask), np.where(argmax_mask, 0.0, -np.inf)
        return Expectation(
            y=y,
            kept=argmax_mask,
            edge=argmax_mask,
            in_part=no_tokens,
            share=1.0,
            possible=argmax_mask,
            certain=True,
            count=1,
        )
    if params.typical_p < 1 or params.xtc_probability > 0 or params.filter_order == "temperature_last":
        return _of_prepared(reference.prepare(row, params))
    depths = row.depths(params.temperature)
    kept_groups = _keep_groups(depths, counts, params, tie_rule)
    y, end = row.scaled(params.temperature), min(kept_groups.end, int(depths.searchsorted(np.inf)))
    kept, edge = x >= levels[end - 1], x == levels[end - 1]
    room = kept_groups.room if end == kept_groups.end else int(counts[end - 1])
    in_part = edge if room < counts[end - 1] else np.zeros_like(edge)
    possible = kept.copy()
    for first, last in kept_groups.doubtful:
        if last > end:
            possible |= (x <= levels[max(first, end)]) & (x >= levels[last - 1]) & (y > -np.inf)
    return Expectation(
        y=y,
        kept=kept,
        edge=edge,
        in_part=in_part,
        share=room / int(counts[end - 1]),
        possible=possible,
        certain=not kept_groups.doubtful and not reference.has_merged_levels(depths),
        count=int(counts[: end - 1].sum()) + room,
    )


def _of_prepared(row: reference.ReferenceRow) -> Expectation:
    """Make the expectation of a request by which larger tokens than the kept ones may be dropped."""
    return Expectation(
        y=row.y,
        kept=row.kept,
        edge=row.kept & (row.x == row.x[row.kept].min()),
        in_part=np.zeros_like(row.kept),
        share=1.0,
        possible=row.kept if row.certain else row.x > -np.inf,
        certain=row.certain,
        count=int(row.kept.sum()),
    )


class _KeptGroups(NamedTuple):
    """Kept groups in descending order: all groups before ``end``."""

    end: int
    room: int
    """Number of tokens of the last of them that stay."""
    doubtful: list[tuple[int, int]]
    """Groups that rounding may decide otherwise, each from the first to behind the last."""


def _keep_groups(depths: Array, counts: Array, params: SamplingParams, tie_rule: TieRule) -> _KeptGroups:
    """Apply floors, min-p, top-k and top-p to groups of ``counts`` tokens at ``depths`` below the largest."""
    end, is_exact_k, doubtful_groups = len(depths), tie_rule == "exact_k", []
    room = int(counts[-1])
    if params.filters:
        floor = reference_floors.floor_depth(depths, counts, params.filters)
        first, last = reference_floors.levels_near(depths, floor)
        doubtful_groups += [(first, last)] if first < last else []
        end = int(depths.searchsorted(floor, "right"))
        room = int(counts[end - 1])
    if params.min_p > 0:
        floor = max(-float(np.log(params.min_p)), 0.0)
        doubtful_groups += _groups_near(depths, floor)
        end = min(end, int(depths.searchsorted(floor, "right")))
        room = int(counts[end - 1])
    if params.top_k > 0 and (cumulative_counts := counts.cumsum())[-1] > params.top_k:
        nth = int(cumulative_counts.searchsorted(params.top_k))
        doubtful_groups += _groups_below(depths, nth)
        if nth < end:
            end, room = nth + 1, int(counts[nth])
            if is_exact_k:
                room = params.top_k - int(cumulative_counts[nth] - counts[nth])
    if params.top_p < 1:
        is_joint = params.filter_order == "joint"
        kept_counts = counts if is_joint else np.append(counts[: end - 1], room)
        masses = kept_counts * np.exp(-depths[: len(kept_counts)])
        mass = float(masses.sum())
        needed_mass, above = params.top_p * mass, masses.cumsum()
        above -= masses
        doubtful_mass = sum(float((counts[a:b] * np.exp(-depths[a:b])).sum()) for a, b in doubtful_groups)
        slack = MASS_TOLERANCE * mass + doubtful_mass
        first, last = (
            int(above.searchsorted(needed_mass - slack)),
            int(above.searchsorted(needed_mass + slack, "right")),
        )
        doubtful_groups.append((first, last))
        nth = max(int(above.searchsorted(needed_mass)) - 1, 0)
        doubtful_groups += _groups_below(depths, nth)
        if nth < end:
            room = room if nth + 1 == end else int(counts[nth])
            end = nth + 1
            if is_exact_k and masses[nth] > 0:
                room = min(room, max(1, math.ceil((needed_mass - above[nth]) / float(np.exp(-depths[nth])))))
    return _KeptGroups(end, room, [(max(1, a), b) for a, b in doubtful_groups if b > max(1, a)])


def _groups_near(depths: Array, depth: float) -> list[tuple[int, int]]:
    """Find the groups within ``EDGE`` of a threshold, but not equal to it."""
    first, last = reference.levels_near(depths, depth)
    equal_range = [first + int(depths[first:last].searchsorted(depth, side)) for side in ("left", "right")]
    return [(a, b) for a, b in ((first, equal_range[0]), (equal_range[1], last)) if a < b]


def _groups_below(depths: Array, nth: int) -> list[tuple[int, int]]:
    """Find the groups less than ``EDGE`` below a kept group."""
    last = reference.levels_near(depths, depths[nth])[1]
    first = int(depths.searchsorted(depths[nth], "right"))
    return [(first, last)] if first < last else []
