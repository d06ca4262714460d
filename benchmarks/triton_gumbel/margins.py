"""Computes in float64 how close a draw was, to explain a disagreement between two samplers in float32.

Two things can tip a draw: the runner-up of a race lies within the rounding of the winner, of the tiles or of the tokens
in the winning tile; or the edge of a filter runs so close to a token that rounding decides whether it is kept. The
margin of a draw is the least change that gives the other token: the lead in the closer race, or the relative change of
``top_p`` or ``min_p`` under which float64 draws what the sampler drew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tokendraw import SamplingParams
from tokendraw_testing import reference

_SHIFTS = (1e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 1e-4)
EXPLAINED = 2e-5
"""Margins up to here are float32's: ``tokendraw_testing.reference.NEAR_TIE``."""


@dataclass(frozen=True)
class Margin:
    """A draw in float64."""

    token: int
    tile_lead: float
    """Lead of the winning tile over the next; infinite if there is only one."""
    token_lead: float
    """Lead of the winning token over the next in its tile."""
    edge: float
    """The least change of a filter under which the sampler's token wins; infinite where none does, or at need."""
    uncertain: bool
    """Whether a filter's edge runs closer to a token than ``reference.EDGE``."""

    @property
    def least(self) -> float:
        """Return the margin."""
        return min(self.tile_lead, self.token_lead, self.edge)

    @property
    def explained(self) -> bool:
        """Whether the margin lies within the rounding of float32."""
        return self.least <= EXPLAINED


def margin(logits: reference.Array, params: SamplingParams, position: int, drawn: int) -> Margin:
    """Judge the token ``drawn`` from a row of logits [V]."""
    assert params.seed is not None
    row = reference.prepare(logits, params)
    token, tile_lead, token_lead = _races(row, params.seed, position)
    close = min(tile_lead, token_lead) <= EXPLAINED or token == drawn
    edge = np.inf if close or row.greedy else _edge(logits, params, position, drawn)
    return Margin(token, tile_lead, token_lead, edge, not row.certain)


def _races(row: reference.ReferenceRow, seed: int, position: int) -> tuple[int, float, float]:
    """Return the token, the lead of the winning tile, and that of the token; ``reference.draw`` returns the less."""
    kept = np.flatnonzero(row.kept)
    if row.greedy or row.empty or len(kept) == 1:
        return int(kept[0]), np.inf, np.inf
    tiles, first = np.unique(kept // reference.TILE_SIZE, return_index=True)
    masses = np.add.reduceat(np.exp(row.y[kept]), first)
    with np.errstate(divide="ignore"):
        scores = np.log(masses) + reference.gumbel(seed, position, tiles, reference.TILE)
    members = kept[kept // reference.TILE_SIZE == tiles[np.argmax(scores)]]
    keys = row.y[members] + reference.gumbel(seed, position, members, reference.TOKEN)
    return int(members[np.argmax(keys)]), _lead(scores), _lead(keys)


def _lead(scores: reference.Array) -> float:
    best = np.sort(scores)[-2:]
    return float(best[1] - best[0]) if len(best) == 2 else np.inf


def _edge(logits: reference.Array, params: SamplingParams, position: int, drawn: int) -> float:
    assert params.seed is not None
    for shift in _SHIFTS:
        for factor in (1 - shift, 1 + shift):
            moved = replace(
                params,
                top_p=min(1.0, params.top_p * factor) if params.top_p < 1 else 1.0,
                min_p=min(1.0, params.min_p * factor),
            )
            if _races(reference.prepare(logits, moved), params.seed, position)[0] == drawn:
                return shift
    return np.inf
