"""Finds the N best logits of a row in a list of granules: collects and orders candidates, or bounds too many."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULE_SIZE, TILE_SIZE, granule_ids

LOWEST_KEY = tl.constexpr(-(1 << 63))
"""A key below all candidates' keys."""
_PIVOTS = tl.constexpr(8)
_SPARE_MAXIMA = tl.constexpr(8)
"""Spare maxima, beyond N, of a good enough bound."""
_MIN_BRACKET_KEYS = tl.constexpr(1 << 13)
"""Stop when the bracket spans at most 2^13 float32 keys (one float16 step)."""
_GRANULES_AT_ONCE = tl.constexpr(16)
_OTHERS_AT_ONCE = tl.constexpr(32)


@triton.jit
def order_key(x, token):
    """Return logit and id in one int64: larger is better, and among equal logits the lower id."""
    return (key_of(x).to(tl.int64) << 32) | (token ^ INT32_MAX).to(tl.int64)


@triton.jit
def _pivots_of(low_key, high_key):
    """Return keys [_PIVOTS] in (low_key, high_key]: first the next key, in case of ties, then evenly spaced."""
    j = tl.arange(0, _PIVOTS)
    return low_key + tl.where(j == 0, 1, ((high_key - low_key) * j + _PIVOTS - 1) // _PIVOTS)


@triton.jit
def _narrow_bracket(low_key, high_key, count, pivots, counts, n):
    """Return the bracket [first, last) of the key of the N-th value, and how many reach ``low_key``."""
    is_enough = counts >= n
    low_key = tl.maximum(low_key, tl.max(tl.where(is_enough, pivots, low_key), 0))
    high_key = tl.minimum(high_key, tl.min(tl.where(is_enough, high_key, pivots), 0))
    fewest = tl.min(tl.where(is_enough, counts, INT32_MAX), 0)
    return low_key, high_key, tl.where(fewest < INT32_MAX, fewest, count)


@triton.jit
def bound_by_maxima(maxima, max_logit, n):
    """Return about the largest value that at least N maxima reach; -inf if fewer than N are above -inf.

    :param maxima: a block in registers; ``max_logit`` the largest of them.
    """
    finite = maxima > float("-inf")
    count = tl.sum(finite.to(tl.int32), 0)
    has_bound = count >= n
    lowest = tl.min(tl.where(finite, maxima, float("inf")), 0)
    low_key = key_of(lowest).to(tl.int64)
    high_key = key_of(max_logit).to(tl.int64) + 1
    while (count > n + _SPARE_MAXIMA).to(tl.int32) * (high_key - low_key > _MIN_BRACKET_KEYS).to(
        tl.int32
    ) > 0:
        pivots = _pivots_of(low_key, high_key)
        counts = tl.sum((maxima[:, None] >= value_of(pivots.to(tl.int32))[None, :]).to(tl.int32), 0)
        low_key, high_key, count = _narrow_bracket(low_key, high_key, count, pivots, counts, n)
    low = value_of(low_key.to(tl.int32))
    return tl.where(has_bound, tl.min(tl.where(maxima >= low, maxima, float("inf")), 0), float("-inf"))


@triton.jit
def group_maxima(granules, number, MAXIMA: tl.constexpr, GRANULES: tl.constexpr):
    """Return the maxima [MAXIMA] of groups of neighbouring granules, -inf beyond them.

    :param granules: [number] maxima, in memory.
    :param GRANULES: granules a group.
    """
    i = tl.arange(0, MAXIMA)[:, None] * GRANULES
    i += tl.arange(0, GRANULES)[None, :]
    maxima = tl.load(granules + i, mask=i < number).to(tl.float32)
    return tl.max(tl.where(i < number, maxima, float("-inf")), 1)


@triton.jit
def _load_granules(
    row, granule_list, start, count, VECTOR: tl.constexpr, AT_ONCE: tl.constexpr = _GRANULES_AT_ONCE
):
    """Return the logits of the listed granules from ``start`` on, [AT_ONCE, 64], and their ids.

    What is none is -inf. NaN is left as it is: it reaches nothing.
    """
    index = start + tl.arange(0, AT_ONCE)
    granule = tl.load(granule_list + index, mask=index < count, other=0)
    token = granule_ids(granule[:, None], tl.arange(0, GRANULE_SIZE)[None, :], VECTOR)
    inside = (index < count)[:, None] & (token < row.vocab_size)
    x = tl.load(row.base + token, mask=inside).to(tl.float32)
    return tl.where(inside, x, float("-inf")), token


@triton.jit
def collect_best(row, granule_list, count, low, keys, VECTOR: tl.constexpr, CANDIDATES: tl.constexpr):
    """Write the candidates, the logits from ``low`` upwards, up to the room; return their number.

    If they exceed the room, the returned number exceeds CANDIDATES. The keys are those of :func:`order_key`.
    """
    num_candidates = tl.zeros((), tl.int32)
    start = 0
    tl.debug_barrier()  # all threads have read the previous candidates
    while start < count:
        x, token = _load_granules(row, granule_list, start, count, VECTOR)
        key = order_key(x, token)
        key = tl.where(x >= low, key, LOWEST_KEY)
        key = tl.reshape(key, (_GRANULES_AT_ONCE * GRANULE_SIZE,), can_reorder=True)
        candidate = key > LOWEST_KEY
        offset = num_candidates + tl.cumsum(candidate.to(tl.int32), 0) - 1
        tl.store(keys + offset, key, mask=candidate & (offset < CANDIDATES))
        num_candidates += tl.sum(candidate.to(tl.int32), 0)
        start = tl.where(num_candidates > CANDIDATES, count, start + _GRANULES_AT_ONCE)
    tl.debug_barrier()
    return num_candidates


@triton.jit
def order_candidates(keys, num_candidates, CANDIDATES: tl.constexpr):
    """Return the candidates [CANDIDATES]: their logits, ids, and places by value, the lowest id first on a tie."""
    i = tl.arange(0, CANDIDATES)
    key = tl.load(keys + i, mask=i < num_candidates, other=LOWEST_KEY)
    rank = tl.zeros((CANDIDATES,), tl.int32)
    start = 0
    while start < num_candidates:
        j = start + tl.arange(0, _OTHERS_AT_ONCE)
        other_keys = tl.load(keys + j, mask=j < num_candidates, other=LOWEST_KEY)
        rank += tl.sum((other_keys[:, None] > key[None, :]).to(tl.int32), 0)
        start += _OTHERS_AT_ONCE
    return value_of((key >> 32).to(tl.int32)), (key & INT32_MAX) ^ INT32_MAX, rank


@triton.jit
def search_edge(
    row,
    granule_list,
    count,
    low,
    max_logit,
    n,
    VECTOR: tl.constexpr,
    CANDIDATES: tl.constexpr,
    AT_ONCE: tl.constexpr = _GRANULES_AT_ONCE,
):
    """Search for the N-th value where more than ``CANDIDATES`` logits reach ``low``.

    Returns (the value from which upwards to collect at most ``CANDIDATES``, the one whose ties fill up to N or -inf).

    :param AT_ONCE: granules that are read at once.
    """
    low_key = key_of(low).to(tl.int64)
    high_key = key_of(max_logit).to(tl.int64) + 1
    number = tl.full((), CANDIDATES + 1, tl.int32)
    while (number > CANDIDATES).to(tl.int32) * (high_key - low_key > 1).to(tl.int32) > 0:
        pivots = _pivots_of(low_key, high_key)
        pivot = value_of(pivots.to(tl.int32))[None, :]
        counts = tl.zeros((_PIVOTS,), tl.int32)
        start = 0
        while start < count:
            x, _ = _load_granules(row, granule_list, start, count, VECTOR, AT_ONCE)
            flat = tl.reshape(x, (AT_ONCE * GRANULE_SIZE,), can_reorder=True)
            counts += tl.sum((flat[:, None] >= pivot).to(tl.int32), 0)
            start += AT_ONCE
        low_key, high_key, number = _narrow_bracket(low_key, high_key, number, pivots, counts, n)
    edge = value_of(low_key.to(tl.int32))
    above = value_of((low_key + 1).to(tl.int32))  # NaN above inf: nothing is
    return tl.where(number > CANDIDATES, above, edge), tl.where(number > CANDIDATES, edge, float("-inf"))


@triton.jit
def fill_ties(row, maximum, tiles, tied_value, threshold, rank, n, value, out, TILES: tl.constexpr):
    """Write the lowest ids of the logits equal to ``tied_value``, from ``rank`` to N.

    :param maximum: [TILES] of the tiles.
    :param value: written to ``out.logprobs``.
    :param out: :class:`~.row_logprobs.BestTokens`, of the N best; without ``logprobs`` ids alone are written.
    """
    tile = tl.arange(0, TILES)
    start = tl.min(tl.where(maximum >= tied_value, tile, TILES), 0)
    while (start < tiles).to(tl.int32) * (rank < n).to(tl.int32) > 0:
        token = start * TILE_SIZE + tl.arange(0, TILE_SIZE)
        inside = token < row.vocab_size
        x = tl.load(row.base + token, mask=inside).to(tl.float32)
        hidden = (x != x) | (x == float("-inf")) | (x < threshold)
        equal = inside & tl.where(tied_value > float("-inf"), x == tied_value, hidden)
        index = rank + tl.cumsum(equal.to(tl.int32), 0) - 1
        tl.store(out.ids + index, token.to(tl.int64), mask=equal & (index < n))
        if out.logprobs is not None:
            tl.store(out.logprobs + index, tl.zeros_like(x) + value, mask=equal & (index < n))
        rank += tl.sum(equal.to(tl.int32), 0)
        start = tl.min(tl.where((maximum >= tied_value) & (tile > start), tile, TILES), 0)
