"""What a sampler may keep of a row: a part of equal tokens, and what rounding may decide."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tokendraw import SamplingParams
from tokendraw.plugin import TieRule
from tokendraw_testing import reference
from tokendraw_testing.reference import Array

MASS_TOLERANCE: Final = 1e-5
"""A nucleus edge that is reached closer than this is left to the rounding of float32 sums."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Float64 expectation of one row. All arrays are [V]."""

    y: Array
    """float64: ``(x - max x) / T``; 0 for the only token of a row that draws none."""
    kept: Array
    """bool: kept tokens; under ``exact_k`` the last group may be kept in part."""
    in_part: Array
    """bool: the group of which some stay, by the sampler's own choice; none under the rule ``value``."""
    share: float
    """Share of the partly kept group."""
    possible: Array
    """bool: possible tokens, with the benefit of rounding."""
    certain: bool
    """Whether no decision of a filter depends on rounding, so that ``probabilities`` are certain."""

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
    """Compute what a row keeps under a tie rule, and whether float32 may keep something else.

    :param logits: [V], or a ``reference.SortedLogits``: its sorting is shared, with ``reference.prepare`` too.
    """
    sorted_logits = reference.SortedLogits.of(logits)
    row = reference.prepare(sorted_logits, params)
    y, kept, certain, in_part, share = row.y, row.kept, row.certain, np.zeros_like(row.kept), 1.0
    if row.greedy or row.empty:
        y = np.where(kept, 0.0, -np.inf)
    elif tie_rule == "exact_k" and not _drops_above(params):
        kept, certain, in_part, share = _keep_exactly(sorted_logits, params)
    elif params.top_p < 1:
        sizes = [np.count_nonzero(_loosened(sorted_logits, params, sign).kept) for sign in (-1, 1)]
        certain = certain and sizes[0] == sizes[1]
    return Expectation(
        y=y,
        kept=kept,
        in_part=in_part,
        share=share,
        possible=kept if certain else _possible(sorted_logits, row, params),
        certain=certain,
    )


def _loosened(row: reference.SortedLogits, params: SamplingParams, sign: int) -> reference.ReferenceRow:
    """Apply filters that keep a little more, or with a negative ``sign`` less, than those of the request."""
    return reference.prepare(
        row,
        replace(
            params,
            top_p=min(1.0, max(1e-9, params.top_p + sign * MASS_TOLERANCE)),
            min_p=min(1.0, params.min_p * (1 - sign * 2 * MASS_TOLERANCE)),
        ),
    )


def _drops_above(params: SamplingParams) -> bool:
    """Whether larger tokens may be dropped, or another temperature filters: ties then stay together."""
    has_ceiling = params.typical_p < 1 or params.xtc_probability > 0
    return has_ceiling or params.filter_order == "temperature_last"


def _possible(
    sorted_logits: reference.SortedLogits, row: reference.ReferenceRow, params: SamplingParams
) -> Array:
    """Mark the tokens [V] that rounding may keep: all, where a filter of the request drops some from above."""
    if _drops_above(params) or params.filters:
        return np.asarray(row.x > -np.inf)
    least = row.y[_loosened(sorted_logits, params, 1).kept].min()
    return np.asarray((row.y >= least - reference.EDGE * max(1.0, -least)) & (row.y > -np.inf))


def _keep_exactly(
    sorted_logits: reference.SortedLogits, params: SamplingParams
) -> tuple[Array, bool, Array, float]:
    """Cut top-k and top-p in the middle of equal tokens; return kept, certain, in_part and share."""
    before = reference.prepare(sorted_logits, replace(params, top_p=1.0))
    certain, num_kept = before.certain, int(before.kept.sum())
    if params.top_k > 0:
        num_kept = min(num_kept, params.top_k)
    levels, counts = sorted_logits.levels
    descending = np.repeat(levels, counts)
    if params.top_p < 1:
        whole = len(descending) if params.filter_order == "joint" else num_kept
        mass = np.exp(-np.repeat(sorted_logits.depths(params.temperature), counts)[:whole])
        above, total = mass.cumsum() - mass, mass.sum()
        tolerances = np.array([-MASS_TOLERANCE, -1e-12, MASS_TOLERANCE])
        ends = above.searchsorted((params.top_p + tolerances) * total).clip(1, num_kept)
        certain = certain and descending[ends[0] - 1] == descending[ends[2] - 1]
        num_kept = int(ends[1])
    least = descending[num_kept - 1]
    edge = before.x == least
    share = (num_kept - np.count_nonzero(before.x > least)) / np.count_nonzero(edge)
    return before.x >= least, bool(certain), edge & (share < 1), float(share)
