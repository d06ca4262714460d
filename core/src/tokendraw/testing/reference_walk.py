"""Computes the answer of a verification, request by request in float64 with numpy alone: the walk along the drafts.

As :mod:`tokendraw.testing.reference`, on which it stands, it imports nothing of tokendraw and is slow and plain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokendraw.testing import reference
from tokendraw.testing.reference import Array

ACCEPT, RESIDUAL_TOKEN, RESIDUAL_TILE, DRAFT_TOKEN, DRAFT_TILE = 2, 3, 4, 5, 6


@dataclass(frozen=True)
class Answer:
    """The tokens that one request emits."""

    tokens: list[int]
    """The accepted drafts and one token more."""
    valid: bool
    lead: float
    """Distance of its closest decision from another one; 0 where float64 cannot say what a filter keeps."""


def distribution(row: reference.Row) -> Array:
    """[V] what ``sample`` draws from."""
    weight = np.where(row.kept, np.exp(row.y, where=row.kept, out=np.zeros_like(row.y)), 0.0)
    return row.kept * 1.0 if row.empty else weight / weight.sum()


def walk(
    target: Array,
    drafts: Sequence[int],
    params: Any,
    positions: Sequence[int],
    *,
    probs: Array | None = None,
    logits: Array | None = None,
    coupled: bool = False,
    dtype: str = "fp32",
) -> Answer:
    """Walk along the drafts of one request with a seed.

    :param target: [n + 1, V], ``drafts`` n ids, ``positions`` one a row of the target.
    :param probs: [n, V] what the drafts were drawn by, or ``logits`` [n, V]; neither: they were chosen.
    """
    tokens: list[int] = []
    valid, lead = True, np.inf
    for step, position in enumerate(positions):
        row = reference.prepare(target[step], params)
        lead, valid = min(lead, np.inf if row.certain else 0.0), valid and row.valid
        own, margin = reference.draw(row, params.seed, position, dtype)
        if step == len(drafts):
            return Answer([*tokens, own], valid, min(lead, margin))
        x = int(drafts[step])
        if coupled or row.greedy:
            lead = min(lead, margin)
            tokens.append(own)
            if x == own:
                continue
            return Answer(tokens, valid, lead)
        p, q = distribution(row), np.zeros(len(row.y))
        if 0 <= x < len(q):
            if probs is not None:
                given = np.asarray(probs[step], np.float64)
                q = np.where((given > 0) & (given < np.inf), given, 0.0)
                valid = valid and bool((given >= 0).all() and 0 < given.max() < np.inf)
            elif logits is not None:
                draft = reference.prepare(logits[step], params)
                q, valid = distribution(draft), valid and draft.valid
                lead = min(lead, np.inf if draft.certain else 0.0)
            else:
                q[x] = 1.0
            w0, w1, _, _ = reference.random_words(params.seed, position, 0, ACCEPT)
            u = float(reference.uniform(w0, w1 if dtype == "fp64" else None))
            ratio = float(p[x] / q[x]) if q[x] > 0 else -np.inf
            lead = min(lead, abs(u - ratio))
            if u < ratio:
                tokens.append(x)
                continue
        token, margin = recover(p, q, params.seed, position, dtype)
        return Answer([*tokens, token], valid, min(lead, margin))
    raise AssertionError("one position a row")


def recover(p: Array, q: Array, seed: int, position: int, dtype: str = "fp32") -> tuple[int, float]:
    """A draw from what p [V] has more than q [V], or from p where that is nothing, as ``reference.draw``.

    A difference is known as much worse than p and q as it is smaller than they are, and so is its logarithm: the lead
    over such a token is divided by that.
    """
    more = np.maximum(p - q, 0.0)
    more, less = (more, p + q) if more.any() else (p, p)
    first = np.arange(0, len(p), reference.TILE_SIZE)
    masses, worth = np.add.reduceat(more, first), np.add.reduceat(np.where(more > 0, less, 0.0), first)
    tile, lead = _best(
        masses, worth, reference.gumbel(seed, position, np.arange(len(first)), RESIDUAL_TILE, dtype)
    )
    ids = np.arange(len(p))[first[tile] : first[tile] + reference.TILE_SIZE]
    noise = reference.gumbel(seed, position, ids, RESIDUAL_TOKEN, dtype)
    token, other = _best(more[ids], less[ids], noise)
    return int(ids[token]), min(lead, other)


def _best(weight: Array, known: Array, noise: Array) -> tuple[int, float]:
    """Find the largest log weight + noise, and its lead in units of the rounding of ``known``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.log(weight) + noise
        best = int(np.argmax(scores))
        slack = np.where(weight > 0, known / weight, 1.0)
        leads = (scores[best] - scores) / np.maximum(1.0, slack + slack[best] - 1.0)
    leads[best] = np.inf
    return best, float(leads.min())
