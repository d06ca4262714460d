"""A sampling step by sets of values, as in the contract: slow, and without sorting."""

import numpy as np

from tokendraw_testing.reference import EDGE, TILE_SIZE, gumbel


def prepared(logits, params):
    """Return (x, y, kept, certain) of a random row."""
    x = np.where(np.isnan(logits), -np.inf, np.asarray(logits, np.float64))
    if np.isinf(x.max()):
        y = np.where(x == np.inf, 0.0, -np.inf)
    else:
        with np.errstate(over="ignore"):
            y = (x - x.max()) / params.temperature
    thresholds, certain = [], True
    if params.min_p > 0:
        thresholds.append(min(float(np.log(params.min_p)), 0.0))
        certain = not near(y, thresholds[0]).any()
    if 0 < params.top_k < len(y):
        at_least = {value: (y >= value).sum() for value in set(y.tolist())}
        thresholds.append(max(value for value, count in at_least.items() if count >= params.top_k))
    kept = y >= max(thresholds, default=-np.inf)
    if params.top_p < 1:
        counted = y if params.filter_order == "joint" else y[kept]
        values = sorted(set(counted.tolist()))
        above = {value: np.exp(counted[counted > value]).sum() / np.exp(counted).sum() for value in values}
        inside = [value for value in values if above[value] < params.top_p or value == values[-1]]
        contested = [value for value in values[:-1] if abs(above[value] - params.top_p) <= EDGE]
        thresholds.append(inside[0])
        kept, certain = kept & (y >= inside[0]), certain and not contested
    for threshold in thresholds:
        certain = certain and not (near(y, threshold) & (y < threshold)).any()
    merged = len(set(x[np.isfinite(y)].tolist())) != len(set(y[np.isfinite(y)].tolist()))
    return x, y, kept & (y > -np.inf), certain and not merged


def near(y, threshold):
    """Which tokens lie next to a threshold without being equal to it."""
    if threshold == -np.inf:
        return np.zeros(y.shape, bool)
    return (y != threshold) & (np.abs(y - threshold) <= EDGE * max(1.0, abs(threshold)))


def drawn(y, kept, seed, position, streams, dtype):
    """The token, and the distance of the runner-up."""
    ids = np.flatnonzero(kept)
    masses = {tile: np.exp(y[ids[ids // TILE_SIZE == tile]]).sum() for tile in sorted(set(ids // TILE_SIZE))}
    with np.errstate(divide="ignore"):
        scores = np.log(list(masses.values())) + gumbel(seed, position, list(masses), streams[1], dtype)
    ids = ids[ids // TILE_SIZE == list(masses)[scores.argmax()]]
    keys = y[ids] + gumbel(seed, position, ids, streams[0], dtype)
    return ids[keys.argmax()], min(
        np.diff(np.sort(s)[-2:])[0] if len(s) > 1 else np.inf for s in (scores, keys)
    )
