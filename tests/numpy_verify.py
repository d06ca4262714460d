"""What a verification must answer, request by request in float64 numpy: the walk along the drafts as it is told."""

from dataclasses import dataclass

import numpy as np

from tokendraw.testing import reference

ACCEPT, RESIDUAL_TOKEN, RESIDUAL_TILE = 2, 3, 4


@dataclass
class Answer:
    tokens: list[int]
    valid: bool
    lead: float
    """How far the closest of its decisions was from another one; 0 where float64 cannot say what a filter keeps."""


def distribution(row):
    """[V] what ``sample`` draws from."""
    weight = np.where(row.kept, np.exp(row.y, where=row.kept, out=np.zeros_like(row.y)), 0.0)
    return row.kept * 1.0 if row.empty else weight / weight.sum()


def walk(target, drafts, params, positions, *, probs=None, logits=None, coupled=False, dtype="fp32"):
    """The tokens of one request with a seed.

    :param target: [n + 1, V], ``drafts`` n ids, ``probs`` or ``logits`` [n, V] or neither.
    """
    tokens, valid, lead = [], True, np.inf
    for step, position in enumerate(positions):
        row = reference.prepare(target[step], params)
        lead = lead if row.certain else 0.0
        valid = valid and row.valid
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
                q, fine = (
                    np.where(probs[step] > 0, probs[step], 0.0),
                    (probs[step] >= 0).all() and probs[step].max() > 0,
                )
                valid = valid and bool(fine)
            elif logits is not None:
                draft = reference.prepare(logits[step], params)
                lead = lead if draft.certain else 0.0
                q, valid = distribution(draft), valid and draft.valid
            else:
                q[x] = 1.0
            w0, w1, _, _ = reference.random_words(params.seed, position, 0, ACCEPT)
            u = reference.uniform(w0, w1 if dtype == "fp64" else None)
            ratio = float(p[x] / q[x]) if q[x] > 0 else -np.inf
            lead = min(lead, abs(float(u) - ratio))
            if u < ratio:
                tokens.append(x)
                continue
        more = np.maximum(p - q, 0.0)
        token, margin = _draw(more if more.any() else p, params.seed, position, dtype)
        return Answer([*tokens, token], valid, min(lead, margin))
    raise AssertionError("one position a row")


def _draw(weight, seed, position, dtype):
    tiles = np.arange(-(-len(weight) // reference.TILE_SIZE))
    with np.errstate(divide="ignore"):
        scores = np.log(np.add.reduceat(weight, tiles * reference.TILE_SIZE))
        scores = scores + reference.gumbel(seed, position, tiles, RESIDUAL_TILE, dtype)
        ids = np.arange(len(weight))
        ids = ids[ids // reference.TILE_SIZE == np.argmax(scores)]
        keys = np.log(weight[ids]) + reference.gumbel(seed, position, ids, RESIDUAL_TOKEN, dtype)
    return int(ids[np.argmax(keys)]), min(_lead(scores), _lead(keys))


def _lead(scores):
    best = np.sort(scores)[-2:]
    return float(best[1] - best[0]) if len(best) == 2 and best[0] > -np.inf else np.inf
