"""Computes the answer of a sampling step, row by row in float64 with numpy alone: slow, plain and independent.

Nothing here imports tokendraw. Requests are read by attribute (``temperature``, ``top_k``, ``top_p``, ``min_p``,
``filter_order``), so ``tokendraw.SamplingParams`` fits; values outside the table of ranges are clamped to it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOKEN, TILE = 0, 1
TILE_SIZE = 1024
EDGE = 1e-6
"""Decisions of a filter that lie closer to its threshold than this are left to the rounding of float32."""
NEAR_TIE = 2e-5
"""Two Gumbel maxima closer than this may swap places in float32."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)

Array = NDArray[Any]


def words(*values: Any) -> tuple[Array, ...]:
    """The values, modulo 2**32, as uint64 arrays."""
    return tuple(np.asarray(v, np.uint64) & _WORD for v in values)


def philox4x32(counter: Any, key: Any) -> tuple[Array, ...]:
    """Philox4x32-10 of Salmon et al. 2011: four counter words and two key words give four output words."""
    c0, c1, c2, c3 = words(*counter)
    k0, k1 = words(*key)
    m0, m1 = words(*_MULTIPLIERS)
    for _ in range(10):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _WORD, (p0 >> _32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + np.uint64(_WEYL[0])) & _WORD, (k1 + np.uint64(_WEYL[1])) & _WORD
    return c0, c1, c2, c3


def inverse_philox4x32(output: Any, key: tuple[int, int]) -> tuple[int, ...]:
    """The counter whose output words are ``output``: Philox is a bijection of the counter for every key."""
    c = list(output)
    inverses = [pow(m, -1, 1 << 32) for m in _MULTIPLIERS]
    for step in reversed(range(10)):
        k0, k1 = ((key[i] + step * _WEYL[i]) % (1 << 32) for i in (0, 1))
        low0, low1 = c[3] * inverses[0] % (1 << 32), c[1] * inverses[1] % (1 << 32)
        high0, high1 = low0 * _MULTIPLIERS[0] >> 32, low1 * _MULTIPLIERS[1] >> 32
        c = [low0, c[0] ^ high1 ^ k0, low1, c[2] ^ high0 ^ k1]
    return tuple(c)


def random_words(seed: Any, position: Any, index: Any, stream: Any) -> tuple[Array, ...]:
    """Output words of the counter (index, position low, position high, stream) under the key ``seed``."""
    seed, position = (
        np.uint64(v % (1 << 64)) if isinstance(v, int) else np.asarray(v).astype(np.uint64)
        for v in (seed, position)
    )
    return philox4x32((index, position & _WORD, position >> _32, stream), (seed & _WORD, seed >> _32))


def uniform(w0: Any, w1: Any = None) -> Array:
    """``(w0 + 1/2) / 2**32``, or with ``w1`` the 53-bit ``((w0 * 2**21 + w1 >> 11) + 1/2) / 2**53``."""
    if w1 is None:
        return np.asarray((np.asarray(w0, np.float64) + 0.5) / 2.0**32)
    (w0, w1) = words(w0, w1)
    bits = (w0 << np.uint64(21)) | (w1 >> np.uint64(11))
    return np.asarray((bits.astype(np.float64) + 0.5) / 2.0**53)


def gumbel(seed: Any, position: Any, index: Any, stream: Any, dtype: str = "fp32") -> Array:
    """``-log(-log1p(-u))`` in float64; ``dtype`` says only how many bits of noise make ``u``."""
    w0, w1, _, _ = random_words(seed, position, index, stream)
    return -np.log(-np.log1p(-uniform(w0, w1 if dtype == "fp64" else None)))


@dataclass(frozen=True, kw_only=True)
class Row:
    """The state of one row before the draw."""

    x: Array
    """[V] logits, NaN replaced by -inf."""
    y: Array
    """[V] ``(x - max x) / T``; 0 for the largest tokens and -inf elsewhere when a row holds +inf."""
    kept: Array
    """[V] bool."""
    certain: bool
    """False where float64 cannot say: a threshold runs closer than ``EDGE`` to a token that it does not equal, or two
    different logits have one y."""
    valid: bool
    greedy: bool
    empty: bool
    """Whether nothing stands above -inf."""


def centre(x: Array) -> Array:
    """``x - max x`` with +inf as the only finite result of a row that holds it, and all -inf left alone."""
    top = x.max()
    if np.isinf(top):
        return np.where(x == np.inf, 0.0, -np.inf)
    return np.asarray(x - top)


def log_softmax(values: Array) -> Array:
    """Log-softmax; all -inf for a row without any mass."""
    centred = centre(values)
    mass = np.exp(centred).sum()
    return centred - np.log(mass) if mass > 0 else centred


def prepare(logits: Any, params: Any) -> Row:
    """Temperature and filters of one row."""
    given = np.asarray(logits, np.float64)
    x = np.where(np.isnan(given), -np.inf, given)
    greedy = not params.temperature > 0
    centred = centre(x)
    with np.errstate(over="ignore", invalid="ignore"):
        y = centred if greedy else np.where(centred == -np.inf, -np.inf, centred / params.temperature)
    empty = bool(x.max() == -np.inf)
    if greedy or empty:
        kept, certain = np.arange(len(x)) == np.argmax(x), True
    else:
        kept, certain = kept_set(y, params)
        certain = certain and not _merged(x, y)
    valid = not (empty or np.isnan(given).any())
    return Row(x=x, y=y, kept=kept, certain=certain, valid=valid, greedy=greedy, empty=empty)


def _merged(x: Array, y: Array) -> bool:
    """Whether rounding made one y of two different logits: a tie in y, and none in the logits."""
    finite = np.isfinite(y)
    return len(np.unique(x[finite])) != len(np.unique(y[finite]))


def kept_set(y: Array, params: Any) -> tuple[Array, bool]:
    """Find the tokens that survive min-p, top-k and top-p; tell whether no decision depends on float32 rounding."""
    thresholds, certain = [], True
    if params.min_p > 0:
        thresholds.append(min(float(np.log(params.min_p)), 0.0))
        certain = not _close(y, thresholds[0]).any()
    if 0 < params.top_k < len(y):
        thresholds.append(np.sort(y)[-params.top_k])
    kept = y >= max(thresholds, default=-np.inf)
    if params.top_p < 1:
        counted = y if params.filter_order == "joint" else y[kept]
        threshold, clear = nucleus_threshold(counted, params.top_p)
        thresholds.append(threshold)
        kept, certain = kept & (y >= threshold), certain and clear
    for threshold in thresholds:  # what lies above a kept token stays above it in float32, or ties with it
        certain = certain and not (_close(y, threshold) & (y < threshold)).any()
    return kept & (y > -np.inf), certain


def _close(y: Array, threshold: float) -> Array:
    """Find the tokens that lie within ``EDGE`` of the threshold without being equal to it."""
    if threshold == -np.inf:
        return np.zeros(y.shape, bool)
    return np.asarray((y != threshold) & (np.abs(y - threshold) <= EDGE * max(1.0, abs(threshold))))


def nucleus_threshold(y: Array, top_p: float) -> tuple[float, bool]:
    """The value of the last token of the smallest set of largest tokens with mass >= top_p."""
    values, counts = np.unique(y, return_counts=True)
    values, masses = values[::-1], (counts * np.exp(values))[::-1]
    above = (np.cumsum(masses) - masses) / masses.sum()
    inside = above < top_p
    inside[0] = True
    contested = np.abs(above[1:] - top_p) <= EDGE
    return values[inside][-1], not contested.any()


def draw(
    row: Row, seed: int, position: int, dtype: str = "fp32", streams: tuple[int, int] = (TOKEN, TILE)
) -> tuple[int, float]:
    """The two-level draw: (token, how far the runner-up lies behind at the closer of the two levels).

    :param streams: of the noise of tokens and of tiles.
    """
    kept = np.flatnonzero(row.kept)
    if row.greedy or row.empty or len(kept) == 1:
        return int(kept[0]), np.inf
    tiles, first = np.unique(kept // TILE_SIZE, return_index=True)
    masses = np.add.reduceat(np.exp(row.y[kept]), first)
    with np.errstate(divide="ignore"):
        scores = np.log(masses) + gumbel(seed, position, tiles, streams[1], dtype)
    tile = tiles[np.argmax(scores)]
    members = kept[kept // TILE_SIZE == tile]
    keys = row.y[members] + gumbel(seed, position, members, streams[0], dtype)
    return int(members[np.argmax(keys)]), min(_lead(scores), _lead(keys))


def _lead(scores: Array) -> float:
    best = np.sort(scores)[-2:]
    return float(best[1] - best[0]) if len(best) == 2 else np.inf


def values(row: Row, token: int, mode: str) -> Array:
    """[V] what ``logprobs_mode`` shows for every token of the row, in float64."""
    if mode == "raw_logits":
        return row.x
    if mode == "raw_logprobs":
        return log_softmax(row.x)
    if row.empty:
        return np.full(len(row.x), -np.inf)
    if row.greedy:
        return np.where(np.arange(len(row.x)) == token, 0.0, -np.inf)
    if mode == "temperature_logprobs":
        return log_softmax(row.y)
    processed = np.where(row.kept, row.y, -np.inf)
    return processed if mode == "processed_logits" else log_softmax(processed)


def log_kept_mass(row: Row) -> float:
    """Log of the kept set's share of the temperature-scaled mass."""
    if row.greedy or row.empty:
        return 0.0
    return float(np.log(np.exp(row.y[row.kept]).sum()) - np.log(np.exp(row.y).sum()))
