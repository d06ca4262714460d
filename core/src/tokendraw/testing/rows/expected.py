"""Computes in float64 which tokens a row may draw, which are uncertain, and how likely each of them is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw._exchange.capabilities import TieRule
from tokendraw._exchange.params import SamplingParams
from tokendraw.testing import reference

MASS_TOLERANCE: Final = 1e-5
"""A nucleus edge that is reached closer than this is left to the rounding of float32 sums."""
SAME: Final = 0.9999
"""Least share of seeded draws that equal the reference's; the others are near ties in float32."""

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The expectation of one row. All arrays are [V]."""

    probabilities: Array
    """float64. Under ``exact_k`` the tokens of a group that is kept in part share its mass evenly."""
    possible: Array
    """bool: what may be drawn, with the benefit of rounding."""
    certain: bool
    """Whether no decision of a filter depends on rounding, so that ``probabilities`` are certain."""
    in_part: Array
    """bool: the group of which some stay, by the sampler's own choice; none under the rule ``value``."""
    edge: Array
    """bool: the least likely tokens that are kept, all tied."""
    kept: Array
    """bool: what is kept; under ``exact_k`` as many of the last group as there is room for."""
    count: int
    """Number of tokens that are kept."""
    log_share: float
    """Log of the kept tokens' share of the temperature-scaled mass."""


def expect(logits: Array, params: SamplingParams, tie_rule: TieRule = "value") -> Expected:
    """Apply temperature and filters to one row, by groups of equal logits from the largest downwards."""
    given = np.asarray(logits, np.float64)
    x = np.where(np.isnan(given), -np.inf, given)
    if not params.temperature > 0 or x.max() == -np.inf:
        one = np.arange(len(x)) == np.argmax(x)
        return Expected(
            probabilities=one.astype(np.float64),
            possible=one,
            certain=True,
            in_part=np.zeros_like(one),
            edge=one,
            kept=one,
            count=1,
            log_share=0.0,
        )
    values, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    values, counts, group = values[::-1], counts[::-1], len(values) - 1 - group
    with np.errstate(over="ignore", invalid="ignore"):
        centred = reference.centre(values)
        y = np.where(centred == -np.inf, -np.inf, centred / params.temperature)
    taken, doubtful = _filtered(y, counts, params, tie_rule)
    masses = np.where(y > -np.inf, taken * np.exp(y), 0.0)
    kept = (taken > 0) & (y > -np.inf)
    merged = len(np.unique(y[y > -np.inf])) != int((y > -np.inf).sum())
    last = int(np.flatnonzero(kept)[-1])
    return Expected(
        probabilities=(masses / masses.sum() / counts)[group],
        possible=(kept | (doubtful & (y > -np.inf)))[group],
        certain=not doubtful.any() and not merged,
        in_part=(kept & (taken < counts))[group],
        edge=group == last,
        kept=kept[group],
        count=int(taken[kept].sum()),
        log_share=float(np.log(masses.sum() / (counts * np.exp(y)).sum())),
    )


def possible_tokens(logits: Array, params: SamplingParams, tie_rule: TieRule) -> Array:
    """Return [V] bool, the tokens that a row [V] float32 may draw. Equal rows in succession are computed once."""
    return _expect_bytes(logits.tobytes(), params, tie_rule).possible


@functools.lru_cache(maxsize=8)
def _expect_bytes(logits: bytes, params: SamplingParams, tie_rule: TieRule) -> Expected:
    return expect(np.frombuffer(logits, np.float32), params, tie_rule)


def _filtered(
    y: Array, counts: Array, params: SamplingParams, tie_rule: TieRule
) -> tuple[Array, NDArray[np.bool_]]:
    """Count the tokens of each group that are kept, and find the groups that rounding may decide otherwise."""
    size, taken = int(counts.sum()), counts.astype(np.int64)
    doubtful = np.zeros(len(y), bool)
    if params.min_p > 0:
        floor = min(float(np.log(params.min_p)), 0.0)
        doubtful |= _close(y, floor) & (y != 0)
        taken = np.where(y >= floor, taken, 0)
    if 0 < params.top_k < size:
        before = np.cumsum(counts) - counts
        inside = before < params.top_k
        doubtful |= _close(y, y[inside][-1]) & ~inside
        room = params.top_k - before if tie_rule == "exact_k" else counts
        taken = np.where(inside, np.minimum(taken, room), 0)
    if params.top_p < 1:
        weights = np.exp(y)
        counted = counts if params.filter_order == "joint" else taken
        above = np.cumsum(counted * weights) - counted * weights
        mass = float((counted * weights).sum())
        doubt = float((counts * weights)[doubtful].sum()) / mass
        inside = above < params.top_p * mass
        inside[0] = True
        doubtful |= np.abs(above / mass - params.top_p) <= MASS_TOLERANCE + doubt
        doubtful[0] = False
        doubtful |= _close(y, y[inside][-1]) & ~inside
        if tie_rule == "exact_k":
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                wanted = np.ceil((params.top_p * mass - above) / weights)
            taken = np.minimum(taken, np.where(np.isfinite(wanted), np.maximum(wanted, 1), taken)).astype(
                np.int64
            )
        taken = np.where(inside, taken, 0)
    return taken, doubtful


def _close(y: Array, threshold: float) -> Array:
    if threshold == -np.inf:
        return np.zeros(y.shape, bool)
    near = np.abs(y - threshold) <= reference.EDGE * max(1.0, abs(threshold))
    return np.asarray((y != threshold) & near)
