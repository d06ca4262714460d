"""Computes the answer of a verification, request by request in float64 with numpy alone: the walk along the drafts.

As :mod:`tokendraw_testing.reference`, on which it stands, it imports nothing of tokendraw and is plain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokendraw_testing import reference
from tokendraw_testing.reference import Array, Drawing, NoiseRequest, ReferenceRow, gumbel_of

Rows = Array | Sequence[ReferenceRow]
"""Rows of logits [n, V], or what :func:`tokendraw_testing.reference.prepare` made of them."""
_PROBABILITY_ERROR = 1e-6
"""Error of a sum of probabilities in float32."""
ACCEPT, RESIDUAL_TOKEN, RESIDUAL_TILE, DRAFT_TOKEN, DRAFT_TILE = 2, 3, 4, 5, 6
RESIDUAL, DRAFT = (RESIDUAL_TOKEN, RESIDUAL_TILE), (DRAFT_TOKEN, DRAFT_TILE)


@dataclass(frozen=True)
class Answer:
    """Tokens emitted for a request."""

    tokens: list[int]
    """The accepted drafts and one token more."""
    valid: bool
    lead: float
    """Distance of the closest decision from its turning point; 0 where float64 cannot say what a filter keeps."""


def distribution(row: ReferenceRow) -> Array:
    """[V] probabilities drawn from by ``sample``."""
    if row.empty:
        return row.kept * 1.0
    weight = np.exp(row.y) * row.kept
    return np.asarray(weight / weight.sum())


def walk(
    target: Rows,
    drafts: Sequence[int],
    params: Any,
    positions: Sequence[int],
    *,
    dtype: str = "fp32",
    **options: Any,
) -> Answer:
    """Walk along the drafts of one request with a seed; parameters and options are those of :func:`walking`."""
    draws = [walking(target, drafts, params, positions, **options)]
    return reference.together(draws, [params.seed], dtype)[0]


def walking(
    target: Rows,
    drafts: Sequence[int],
    params: Any,
    positions: Sequence[int],
    *,
    probs: Array | None = None,
    logits: Rows | None = None,
    mode: str = "rejection",
) -> Drawing[Answer]:
    """Walk along the drafts of one request, as :func:`walk` does alone and ``reference.together`` for many requests.

    :param target: [n + 1, V], ``drafts`` n ids, ``positions`` one a row of the target. Rows that are walked more than
        once may be given prepared, here and in ``logits``.
    :param probs: [n, V] what the drafts were drawn by, or ``logits`` [n, V]; neither: they were chosen.
    :param mode: ``rejection``, ``coupled`` or ``block``.
    """
    if mode == "block":
        rows = [_prepared(row, params) for row in target[: len(positions)]]
        if not any(row.greedy for row in rows):
            return (yield from _walking_block(rows, drafts, params, positions, probs, logits))
    tokens: list[int] = []
    valid, lead = True, np.inf
    for step, position in enumerate(positions):
        row = _prepared(target[step], params)
        lead, valid = min(lead, np.inf if row.certain else 0.0), valid and row.valid
        if step == len(drafts) or mode == "coupled" or row.greedy:
            sampled, margin = yield from reference.drawing(row, position)
            lead = min(lead, margin)
            tokens.append(sampled)
            if step < len(drafts) and drafts[step] == sampled:
                continue
            return Answer(tokens, valid, lead)
        x, p = int(drafts[step]), distribution(row)
        q, is_valid, is_certain = _draft_distribution(x, len(p), step, params, probs, logits)
        valid, lead = valid and is_valid, min(lead, np.inf if is_certain else 0.0)
        if 0 <= x < len(q):
            u = float((yield NoiseRequest(position, np.zeros(1, np.int64), ACCEPT))[0])
            ratio = float(p[x] / q[x]) if q[x] > 0 else -np.inf
            lead = min(lead, abs(u - ratio))
            if u < ratio:
                tokens.append(x)
                continue
        token, margin = yield from _recovering(p, q, position)
        return Answer([*tokens, token], valid, min(lead, margin))
    raise AssertionError("one position a row")


def _walking_block(
    rows: list[ReferenceRow],
    drafts: Sequence[int],
    params: Any,
    positions: Sequence[int],
    probs: Array | None,
    logits: Rows | None,
) -> Drawing[Answer]:
    """Accept the drafts of a request up to the largest i with ``u_i <= h_i``, and draw a token more."""
    p, num_drafts = [distribution(row) for row in rows], len(drafts)
    told = params, probs, logits
    drawn_by = [_draft_distribution(int(x), len(p[0]), i, *told) for i, x in enumerate(drafts)]
    q = [each for each, _, _ in drawn_by]
    shares, lead, num_accepted = [1.0], np.inf, 0
    for i, x in enumerate(map(int, drafts)):
        can_be_drawn = 0 <= x < len(p[i]) and q[i][x] > 0
        shares.append(min(1.0, shares[-1] * float(p[i][x] / q[i][x])) if can_be_drawn else 0.0)
    for i in range(num_drafts, 0, -1):
        u = float((yield NoiseRequest(positions[i - 1], np.array([i - 1]), ACCEPT))[0])
        likely, error = shares[i], 0.0
        if i < num_drafts:
            excess = float(np.maximum(shares[i] * p[i] - q[i], 0.0).sum())
            mass = excess + 1 - shares[i]
            likely = excess / mass if mass > 0 else 1.0
            error = _PROBABILITY_ERROR / mass if mass > 0 else 0.0
        lead = min(lead, max(abs(u - likely) - error, 0.0))
        if u <= likely:
            num_accepted = i
            break
    certain = [row.certain for row in rows[: num_drafts or 1]] + [each for _, _, each in drawn_by]
    certain += [rows[-1].certain] if num_accepted == num_drafts else []
    lead = min(lead, np.inf if all(certain) else 0.0)
    valid = all(row.valid for row in rows[: num_accepted + 1])
    valid = valid and all(each for _, each, _ in drawn_by[: num_accepted + 1])
    accepted, position = [int(x) for x in drafts[:num_accepted]], positions[num_accepted]
    if num_accepted == num_drafts:
        token, margin = yield from reference.drawing(rows[num_accepted], position)
    else:
        left = shares[num_accepted] * p[num_accepted]
        token, margin = yield from _recovering(left, q[num_accepted], position, p[num_accepted])
    return Answer([*accepted, token], valid, min(lead, margin))


def _draft_distribution(
    x: int, size: int, step: int, params: Any, probs: Array | None, logits: Rows | None
) -> tuple[Array, bool, bool]:
    """Return (the distribution that a draft was drawn by, 0 of a placeholder; whether valid; whether certain)."""
    if not 0 <= x < size:
        return np.zeros(size), True, True
    if probs is not None:
        draft_probs = np.asarray(probs[step], np.float64)
        q = np.where((draft_probs > 0) & (draft_probs < np.inf), draft_probs, 0.0)
        return q, bool((draft_probs >= 0).all() and 0 < draft_probs.max() < np.inf), True
    if logits is not None:
        draft_row = _prepared(logits[step], params)
        return distribution(draft_row), draft_row.valid, draft_row.certain
    return (np.arange(size) == x) * 1.0, True, True


def _prepared(row: Any, params: Any) -> ReferenceRow:
    return row if isinstance(row, ReferenceRow) else reference.prepare(row, params)


def _recovering(
    p: Array, q: Array, position: int, otherwise: Array | None = None
) -> Drawing[tuple[int, float]]:
    """Recover a token from the excess of p over q; without any, from ``otherwise`` (None: p).

    A difference is known as much worse than p and q as it is smaller than they are, and so is its logarithm: the lead
    over such a token is divided by that.
    """
    excess = np.maximum(p - q, 0.0)
    instead = p if otherwise is None else otherwise
    excess, scale = (excess, p + q) if excess.any() else (instead, instead)
    tile, lead = 0, np.inf
    if len(p) > reference.TILE_SIZE:
        first = np.arange(0, len(p), reference.TILE_SIZE)
        masses, error_masses = np.add.reduceat(excess, first), np.add.reduceat(scale * (excess > 0), first)
        u = yield NoiseRequest(position, np.arange(len(first)), RESIDUAL_TILE)
        tile, lead = _best(masses, error_masses, u)
    start = tile * reference.TILE_SIZE
    ids = start + np.flatnonzero(excess[start : start + reference.TILE_SIZE])
    token, token_lead = _best(excess[ids], scale[ids], (yield NoiseRequest(position, ids, RESIDUAL_TOKEN)))
    return int(ids[token]), min(lead, token_lead)


def _best(weight: Array, scale: Array, u: Array) -> tuple[int, float]:
    """Find the largest log weight + noise, and its lead in units of the rounding of ``scale``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.log(weight) + gumbel_of(u)
        best = int(np.argmax(scores))
        relative_error = np.where(weight > 0, scale / weight, 1.0)
        leads = (scores[best] - scores) / np.maximum(1.0, relative_error + relative_error[best] - 1.0)
    leads[best] = np.inf
    return best, float(leads.min())
