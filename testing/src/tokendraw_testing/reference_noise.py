"""Computes the random numbers of the contract with numpy alone: Philox and its variates."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_BLOCK = 1 << 13
"""Counters computed at once: their state fits a second-level cache."""

Array = NDArray[Any]


def words(*values: Any) -> tuple[Array, ...]:
    """The values, modulo 2**32, as uint64 arrays."""
    return tuple(np.asarray(v, np.uint64) & _WORD for v in values)


def philox4x32(counter: Any, key: Any) -> tuple[Array, ...]:
    """Philox4x32-10 of Salmon et al. 2011: four counter words and two key words give four output words."""
    inputs = words(*counter, *key)
    shape = np.broadcast(*inputs).shape
    state, keys = np.empty((4, *shape), np.uint64), inputs[4:]
    for i in range(4):
        state[i] = inputs[i]
    if state.size <= 4 * _BLOCK:
        _ten_rounds(state, *keys)
        return tuple(state)
    flat = state.reshape(4, -1)
    keys = tuple(np.broadcast_to(x, shape).reshape(-1) if x.ndim else x for x in keys)
    for start in range(0, flat.shape[1], _BLOCK):
        part = slice(start, start + _BLOCK)
        _ten_rounds(flat[:, part], *(x[part] if x.ndim else x for x in keys))
    return tuple(state)


def _ten_rounds(state: Array, k0: Array, k1: Array) -> None:
    """Compute in place. Above the low words of c1, c3 and the key stands what is masked later."""
    m0, m1, w0, w1 = (np.uint64(x) for x in (*_MULTIPLIERS, *_WEYL))
    c0, c1, c2, c3 = (state[i, ...] for i in range(4))
    p0, p1 = np.empty_like(c0), np.empty_like(c2)
    for _ in range(10):
        np.multiply(c0, m0, p0)
        np.multiply(c2, m1, p1)
        for product, word_in, key, word_out in ((p1, c1, k0, c0), (p0, c3, k1, c2)):
            np.right_shift(product, _32, word_out)
            np.bitwise_xor(word_out, word_in, word_out)
            np.bitwise_xor(word_out, key, word_out)
            np.bitwise_and(word_out, _WORD, word_out)
        c1, p1, c3, p0 = p1, c1, p0, c3  # ten times: in the end, each stands where it stood
        k0, k1 = k0 + w0, k1 + w1
    state[1::2] &= _WORD


def inverse_philox4x32(output: Any, key: tuple[int, int]) -> tuple[int, ...]:
    """Invert Philox, a bijection of the counter for every key: from output words to counter."""
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
    variates_by_draw: dict[int, Any] = dict.fromkeys(range(len(draws)))
    while variates_by_draw:
        requests: dict[int, NoiseRequest] = {}
        for i, variates in variates_by_draw.items():
            try:
                requests[i] = draws[i].send(variates)
            except StopIteration as stop:
                done[i] = stop.value
        variates_by_draw = (
            dict(zip(requests, _variates(requests, seeds, dtype), strict=True)) if requests else {}
        )
    return [done[i] for i in range(len(draws))]


def _variates(requests: dict[int, NoiseRequest], seeds: Sequence[int], dtype: str) -> list[Array]:
    counters = [(seeds[i] % (1 << 64), ask.position, ask.stream) for i, ask in requests.items()]
    if len(counters) == 1:
        (seed, position, stream), (ask,) = counters[0], requests.values()
        return [uniforms(seed, position, ask.ids, stream, dtype)]
    sizes = [len(ask.ids) for ask in requests.values()]
    seeds_of, positions, streams = (
        np.repeat(np.array(x, np.uint64), sizes) for x in zip(*counters, strict=True)
    )
    ids = np.concatenate([ask.ids for ask in requests.values()])
    return np.split(uniforms(seeds_of, positions, ids, streams, dtype), np.cumsum(sizes)[:-1])
