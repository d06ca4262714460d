"""Computes the answer of a sampling step, row by row in float64 with numpy alone: plain and independent.

Nothing here imports tokendraw. Requests are read by attribute (``temperature``, ``top_k``, ``top_p``, ``min_p``,
``filter_order``, ``filters``, and ``typical_p``, ``xtc_probability``, ``xtc_threshold`` if there), so
``tokendraw.SamplingParams`` fits; values outside the table of ranges are clamped. A row with an ``xtc_probability`` is
that of a uniform below it: :func:`applies_xtc` tells whether it is for a seed.

First stand the random numbers of the contract, Philox and its variates, then rows and draws. A row is sorted once, into
its distinct values with their counts, and every filter is a range of those that it keeps:
see :mod:`tokendraw_testing.reference_filters`.
"""

import functools
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from tokendraw_testing.reference_filters import EDGE as EDGE
from tokendraw_testing.reference_filters import Array as Array
from tokendraw_testing.reference_filters import KeptLevels

TOKEN, TILE, XTC = 0, 1, 7
SAMPLE = TOKEN, TILE
"""The streams of the noise of a draw."""
TILE_SIZE = 1024
NEAR_TIE = 2e-5
"""Two Gumbel maxima closer than this may swap places in float32."""
_MULTIPLIERS = np.array((0xD2511F53, 0xCD9E8D57), np.uint64)
_WEYL = np.array((0x9E3779B9, 0xBB67AE85), np.uint64)
_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_BLOCK = 1 << 13
"""Counters computed at once: their state fits a second-level cache."""


def _words(*values: Any) -> list[Array]:
    """The values, modulo 2**32, as uint64 arrays."""
    return [np.asarray(value, np.uint64) & _WORD for value in values]


def philox4x32(counter: Any, key: Any) -> tuple[Array, ...]:
    """Philox4x32-10 of Salmon et al. 2011: four counter words and two key words give four output words."""
    words = _words(*counter, *key)
    size = np.broadcast(*words).size
    if size <= _BLOCK or any(word.shape not in ((), (size,)) for word in words):
        return _ten_rounds(*words)
    starts = range(0, size, _BLOCK)
    blocks = [_ten_rounds(*(x[i : i + _BLOCK] if x.ndim else x for x in words)) for i in starts]
    return tuple(map(np.concatenate, zip(*blocks, strict=True)))


def _ten_rounds(c0: Array, c1: Array, c2: Array, c3: Array, k0: Array, k1: Array) -> tuple[Array, ...]:
    (m0, m1), (w0, w1) = _MULTIPLIERS, _WEYL
    for _ in range(10):
        p0, p1 = c0 * m0, c2 * m1
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _WORD, (p0 >> _32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + w0) & _WORD, (k1 + w1) & _WORD
    return c0, c1, c2, c3


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
    (w0, w1) = _words(w0, w1)
    bits = (w0 << np.uint64(21)) | (w1 >> np.uint64(11))
    return np.asarray((bits.astype(np.float64) + 0.5) / 2.0**53)


def uniforms(seed: Any, position: Any, index: Any, stream: Any, dtype: str = "fp32") -> Array:
    """Uniform variates in float64; ``dtype`` says only how many bits of noise make them."""
    w0, w1, _, _ = random_words(seed, position, index, stream)
    return uniform(w0, w1 if dtype == "fp64" else None)


def gumbel_of(u: Array) -> Array:
    """``-log(-log1p(-u))``."""
    return np.asarray(-np.log(-np.log1p(-u)))


def gumbel(seed: Any, position: Any, index: Any, stream: Any, dtype: str = "fp32") -> Array:
    """Gumbel variates in float64, ``dtype`` as in :func:`uniforms`."""
    return gumbel_of(uniforms(seed, position, index, stream, dtype))


class NoiseRequest(NamedTuple):
    """The next uniform variates of a draw: position, ids or tile numbers, and stream."""

    position: int
    ids: Array
    stream: int


Answer = TypeVar("Answer")
Drawing = Generator[NoiseRequest, Array, Answer]
"""A draw, or several in a row, as a generator from requests for noise and variates to the result."""


def together(draws: Sequence[Drawing[Answer]], seeds: Sequence[int], dtype: str = "fp32") -> list[Answer]:
    """Run many draws at once, each with its seed: one call makes the next variates of all draws."""
    done: dict[int, Answer] = {}
    variates: dict[int, Any] = dict.fromkeys(range(len(draws)))
    while variates:
        requests: dict[int, NoiseRequest] = {}
        for i, known in variates.items():
            try:
                requests[i] = draws[i].send(known)
            except StopIteration as stop:
                done[i] = stop.value
        variates = _variates(requests, seeds, dtype) if requests else {}
    return [done[i] for i in range(len(draws))]


def _variates(requests: dict[int, NoiseRequest], seeds: Sequence[int], dtype: str) -> dict[int, Array]:
    counters = [(seeds[i] % (1 << 64), ask.position, ask.stream) for i, ask in requests.items()]
    sizes = [len(ask.ids) for ask in requests.values()]
    seeds_of, positions, streams = (
        np.repeat(np.array(x, np.uint64), sizes) for x in zip(*counters, strict=True)
    )
    ids = np.concatenate([ask.ids for ask in requests.values()])
    parts = np.split(uniforms(seeds_of, positions, ids, streams, dtype), np.cumsum(sizes)[:-1])
    return dict(zip(requests, parts, strict=True))


@dataclass(frozen=True)
class SortedLogits:
    """One row of logits, read and sorted once for several requests."""

    x: Array
    """[V] float64, NaN replaced by -inf."""
    top: float
    """The largest of them."""
    has_nan: bool

    @classmethod
    def of(cls, logits: Any) -> Self:
        """Read a row [V]; return a row read before unchanged."""
        if isinstance(logits, cls):
            return logits
        x = np.asarray(logits).astype(np.float64)
        top = float(x.max())
        has_nan = top != top
        if has_nan:
            x[np.isnan(x)] = -np.inf
            top = float(x.max())
        return cls(x, top, has_nan)

    @functools.cached_property
    def levels(self) -> tuple[Array, Array]:
        """The distinct values in descending order, and how many tokens have each: float64 and int64."""
        ascending, counts = np.unique(self.x, return_counts=True)
        return ascending[::-1], counts[::-1]

    def depths(self, temperature: float) -> Array:
        """How far each level lies below the largest: ``-y``, ascending."""
        return -_scaled(self.levels[0], self.top, temperature)

    def scaled(self, temperature: float) -> Array:
        """[V] ``y = (x - max x) / T``, as :attr:`Row.y`."""
        return _scaled(self.x, self.top, temperature)


@dataclass(frozen=True, kw_only=True)
class ReferenceRow:
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

    @functools.cached_property
    def tile_masses(self) -> Array:
        """The sum of ``exp(y)`` over the kept tokens of each tile, relative to the largest of them."""
        weights = np.exp(np.where(self.kept, self.y, -np.inf) - self.y[self.kept].max())
        return np.add.reduceat(weights, np.arange(0, len(self.y), TILE_SIZE))


def _scaled(x: Array, top: float, temperature: float) -> Array:
    if np.isinf(top):  # +inf is the only finite result of a row that holds it, and all -inf is left alone
        return np.where(x == np.inf, 0.0, -np.inf)
    y: Array = x - top
    if temperature != 1:
        with np.errstate(over="ignore", invalid="ignore"):
            y /= temperature
        if temperature == np.inf:
            y[np.isnan(y)] = -np.inf
    return y


def log_softmax(values: Array) -> Array:
    """Log-softmax; all -inf for a row without any mass."""
    centred = _scaled(values, float(values.max()), 1.0)
    mass = np.exp(centred).sum()
    return centred - np.log(mass) if mass > 0 else centred


def prepare(logits: Any, params: Any) -> ReferenceRow:
    """Apply the temperature and filters of a request to one row.

    :param logits: [V], or a :class:`SortedLogits`: then requests share the sorting.
    """
    row = SortedLogits.of(logits)
    greedy, empty = not params.temperature > 0, row.top == -np.inf
    y = row.scaled(1.0 if greedy else params.temperature)
    if greedy or empty:
        kept, certain = np.zeros(len(y), bool), True
        kept[row.x.argmax()] = True
    else:
        levels, counts = row.levels
        is_last = params.filter_order == "temperature_last"
        found = KeptLevels.of(row.depths(1.0 if is_last else params.temperature), counts, params)
        certain = found.certain and not has_merged_levels(row.depths(params.temperature))
        kept = (row.x <= levels[found.first]) & (row.x >= levels[found.end - 1]) & (y > -np.inf)
        if not kept.any():  # y of a token far below a dropped one is no number
            kept, certain = row.x == levels[found.first], False
    valid = not (empty or row.has_nan)
    return ReferenceRow(x=row.x, y=y, kept=kept, certain=certain, valid=valid, greedy=greedy, empty=empty)


def threshold(row: ReferenceRow) -> float:
    """Return the least kept logit; -inf where every logit above -inf is kept, NaN where there is none.

    Of a greedy row all tokens tied with the largest count as kept, and of a row with +inf those of +inf.
    """
    if row.empty:
        return np.nan
    top = row.x.max()
    if top == np.inf:
        return np.inf
    least = top if row.greedy else row.x[row.kept].min()
    is_dropped = ((row.x < least) | (row.x > ceiling(row))) & (row.x > -np.inf)
    return float(least) if is_dropped.any() else -np.inf


def ceiling(row: ReferenceRow) -> float:
    """Return the greatest kept logit; NaN where there is none."""
    return np.nan if row.empty else float(row.x[row.kept].max())


def applies_xtc(params: Any, seed: int, position: int, dtype: str = "fp32") -> bool:
    """Return whether XTC drops tokens of a row with a seed."""
    return bool(uniforms(seed % 2**64, position, 0, XTC, dtype) < params.xtc_probability)


def has_merged_levels(depths: Array) -> bool:
    """Whether rounding made one y of two different logits: a tie in y, but not in the logits."""
    finite_depths = depths[: depths.searchsorted(np.inf)]
    return bool((finite_depths[1:] == finite_depths[:-1]).any())


def drawing(
    row: ReferenceRow, position: int, streams: tuple[int, int] = SAMPLE
) -> Drawing[tuple[int, float]]:
    """Draw in two levels, as :func:`draw` does alone and :func:`together` for many rows.

    :param streams: of the noise of tokens and of tiles.
    """
    if row.greedy or row.empty or np.count_nonzero(row.kept) == 1:
        return int(row.kept.argmax()), np.inf
    tile, lead = 0, np.inf
    if len(row.y) > TILE_SIZE:
        noise = gumbel_of((yield NoiseRequest(position, np.arange(len(row.tile_masses)), streams[1])))
        with np.errstate(divide="ignore"):
            tile, lead = _best(np.log(row.tile_masses) + noise)
    start = tile * TILE_SIZE
    members = start + np.flatnonzero(row.kept[start : start + TILE_SIZE])
    noise = gumbel_of((yield NoiseRequest(position, members, streams[0])))
    best, token_lead = _best(row.y[members] + noise)
    return int(members[best]), min(lead, token_lead)


def _best(scores: Array) -> tuple[int, float]:
    best = int(scores.argmax())
    rivals = scores.copy()
    rivals[best] = -np.inf
    return best, float(scores[best] - rivals.max())


def draw(
    row: ReferenceRow, seed: int, position: int, dtype: str = "fp32", streams: tuple[int, int] = SAMPLE
) -> tuple[int, float]:
    """The two-level draw: (token, how far the runner-up lies behind at the closer of the two levels)."""
    return together([drawing(row, position, streams)], [seed], dtype)[0]


def values(row: ReferenceRow, token: int, mode: str) -> Array:
    """[V] logprobs_mode's value of every token of the row, in float64."""
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


def rank(row: ReferenceRow, values: Array, token: int) -> int:
    """Count the tokens of a row with a value, as :func:`values` has them, at least that of a token.

    Logits decide among values that float32 shows as more than -inf: rounding may make one value of two of them.
    """
    is_shown = values >= -np.finfo(np.float32).max
    return int((is_shown & (row.x >= row.x[token])).sum()) if is_shown[token] else len(values)


def entropy(row: ReferenceRow, mode: str) -> float:
    """Entropy in nats of the softmax that a logprobs mode shows; NaN without a value above -inf."""
    if row.empty:
        return np.nan
    normalised = mode if mode.endswith("logprobs") else mode.replace("logits", "logprobs")
    logprobs = values(row, int(row.x.argmax()), normalised)
    shown = logprobs[logprobs > -np.inf]
    return max(0.0, -float((np.exp(shown) * shown).sum()))


def log_kept_mass(row: ReferenceRow) -> float:
    """Log of the kept set's share of the temperature-scaled mass, at most 0."""
    if row.greedy or row.empty:
        return 0.0
    peak = row.y[row.kept].max()
    return min(0.0, float(peak + np.log(np.exp(row.y[row.kept] - peak).sum()) - np.log(np.exp(row.y).sum())))
