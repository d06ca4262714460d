"""The N best logits of a row among those of a list of granules: collected, put in order, or bounded where too many."""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.row_address import is_inside
from tokendraw_triton_gumbel.kernels.shared.tile_layout import GRANULE_SIZE, TILE_SIZE, granule_ids

_LEAST_KEY = tl.constexpr(-(1 << 63))
"""Key below that of every candidate."""
_PIVOTS = tl.constexpr(8)
_CLOSE = tl.constexpr(8)
"""Maxima beyond N at which a bound is good enough."""
_COARSE = tl.constexpr(1 << 13)
"""Float32 keys between the ends of a bracket at which it is close enough: one step of float16."""
_GRANULES_AT_ONCE = tl.constexpr(16)
_OTHERS_AT_ONCE = tl.constexpr(32)


@triton.jit
def _pivots_of(first, last):
    """Return keys [_PIVOTS] in (first, last]: the one after ``first``, whose ties may be all there is, then evenly."""
    j = tl.arange(0, _PIVOTS)
    return first + tl.where(j == 0, 1, ((last - first) * j + _PIVOTS - 1) // _PIVOTS)


@triton.jit
def _narrowed(first, last, count, pivots, counts, n):
    """Return the bracket [first, last) of the key of the N-th value, and how many reach ``first``."""
    enough = counts >= n
    first = tl.maximum(first, tl.max(tl.where(enough, pivots, first), 0))
    last = tl.minimum(last, tl.min(tl.where(enough, last, pivots), 0))
    fewest = tl.min(tl.where(enough, counts, INT32_MAX), 0)
    return first, last, tl.where(fewest < INT32_MAX, fewest, count)


@triton.jit
def bound_by_maxima(maxima, top, n):
    """Return the largest value, about, that at least N of the maxima reach; -inf if fewer are above that.

    :param maxima: a block in registers; ``top`` the largest of them.
    """
    finite = maxima > float("-inf")
    count = tl.sum(finite.to(tl.int32), 0)
    proven = count >= n
    lowest = tl.min(tl.where(finite, maxima, float("inf")), 0)
    first = key_of(lowest).to(tl.int64)
    last = key_of(top).to(tl.int64) + 1
    while (count > n + _CLOSE).to(tl.int32) * (last - first > _COARSE).to(tl.int32) > 0:
        pivots = _pivots_of(first, last)
        counts = tl.sum((maxima[:, None] >= value_of(pivots.to(tl.int32))[None, :]).to(tl.int32), 0)
        first, last, count = _narrowed(first, last, count, pivots, counts, n)
    low = value_of(first.to(tl.int32))
    return tl.where(proven, tl.min(tl.where(maxima >= low, maxima, float("inf")), 0), float("-inf"))


@triton.jit
def _load_granules(row, lead, listed, start, count, VECTOR: tl.constexpr):
    """Return the logits of the listed granules from ``start`` on, [_GRANULES_AT_ONCE, 64], and their ids.

    What is none is -inf. NaN is left as it is: it reaches nothing.
    """
    slot = start + tl.arange(0, _GRANULES_AT_ONCE)
    granule = tl.load(listed + slot, mask=slot < count, other=0)
    token = granule_ids(granule[:, None], tl.arange(0, GRANULE_SIZE)[None, :], VECTOR)
    inside = (slot < count)[:, None] & is_inside(token, row, lead)
    x = tl.load(row.base + token, mask=inside).to(tl.float32)
    return tl.where(inside, x, float("-inf")), token


@triton.jit
def collect_best(row, lead, listed, count, low, keys, VECTOR: tl.constexpr, CANDIDATES: tl.constexpr):
    """Write the candidates, the logits from ``low`` upwards, as far as there is room; return how many there are.

    Where there is no more room, that many or fewer. A key is a logit and an id in one: the larger the better, the
    lower the id the better among equals.

    :param lead: ids of the first tile that the row does not hold, or None: see :func:`~.row_address.is_inside`.
    """
    found = tl.zeros((), tl.int32)
    start = 0
    tl.debug_barrier()  # nobody reads the last candidates any more
    while start < count:
        x, token = _load_granules(row, lead, listed, start, count, VECTOR)
        key = (key_of(x).to(tl.int64) << 32) | (token ^ INT32_MAX).to(tl.int64)
        key = tl.where(x >= low, key, _LEAST_KEY)
        key = tl.reshape(key, (_GRANULES_AT_ONCE * GRANULE_SIZE,), can_reorder=True)
        candidate = key > _LEAST_KEY
        place = found + tl.cumsum(candidate.to(tl.int32), 0) - 1
        tl.store(keys + place, key, mask=candidate & (place < CANDIDATES))
        found += tl.sum(candidate.to(tl.int32), 0)
        start = tl.where(found > CANDIDATES, count, start + _GRANULES_AT_ONCE)
    tl.debug_barrier()
    return found


@triton.jit
def order_candidates(keys, found, CANDIDATES: tl.constexpr):
    """Return the candidates [CANDIDATES]: their logits, ids, and places by value, the lowest id first on a tie."""
    i = tl.arange(0, CANDIDATES)
    key = tl.load(keys + i, mask=i < found, other=_LEAST_KEY)
    place = tl.zeros((CANDIDATES,), tl.int32)
    start = 0
    while start < found:
        j = start + tl.arange(0, _OTHERS_AT_ONCE)
        others = tl.load(keys + j, mask=j < found, other=_LEAST_KEY)
        place += tl.sum((others[:, None] > key[None, :]).to(tl.int32), 0)
        start += _OTHERS_AT_ONCE
    return value_of((key >> 32).to(tl.int32)), (key & INT32_MAX) ^ INT32_MAX, place


@triton.jit
def search_edge(row, lead, listed, count, low, top, n, VECTOR: tl.constexpr, CANDIDATES: tl.constexpr):
    """Search for the N-th value where more than ``CANDIDATES`` logits reach ``low``.

    Returns (the value from which upwards to collect at most ``CANDIDATES``, the one whose ties fill up to N or -inf).
    """
    first = key_of(low).to(tl.int64)
    last = key_of(top).to(tl.int64) + 1
    number = tl.full((), CANDIDATES + 1, tl.int32)
    while (number > CANDIDATES).to(tl.int32) * (last - first > 1).to(tl.int32) > 0:
        pivots = _pivots_of(first, last)
        pivot = value_of(pivots.to(tl.int32))[None, :]
        counts = tl.zeros((_PIVOTS,), tl.int32)
        start = 0
        while start < count:
            x, _ = _load_granules(row, lead, listed, start, count, VECTOR)
            flat = tl.reshape(x, (_GRANULES_AT_ONCE * GRANULE_SIZE,), can_reorder=True)
            counts += tl.sum((flat[:, None] >= pivot).to(tl.int32), 0)
            start += _GRANULES_AT_ONCE
        first, last, number = _narrowed(first, last, number, pivots, counts, n)
    edge = value_of(first.to(tl.int32))
    above = value_of((first + 1).to(tl.int32))  # NaN above inf: nothing is
    return tl.where(number > CANDIDATES, above, edge), tl.where(number > CANDIDATES, edge, float("-inf"))


@triton.jit
def count_ties(row, lead, listed, count, tied, VECTOR: tl.constexpr):
    """Count the logits that equal ``tied`` in the listed granules."""
    number = tl.zeros((), tl.int32)
    start = 0
    while start < count:
        x, _ = _load_granules(row, lead, listed, start, count, VECTOR)
        number += tl.sum(tl.sum((x == tied).to(tl.int32), 1), 0)
        start += _GRANULES_AT_ONCE
    return number


@triton.jit
def fill_ties(row, maximum, tiles, tied, floor, place, n, value, out, TILES: tl.constexpr):
    """Write the lowest ids of the logits equal to ``tied`` from ``place`` to N; -inf is also what the floor hides.

    :param maximum: [TILES] of the tiles.
    :param out: :class:`~.row_logprobs.Described`, of the N best.
    """
    tile = tl.arange(0, TILES)
    start = tl.min(tl.where(maximum >= tied, tile, TILES), 0)
    while (start < tiles).to(tl.int32) * (place < n).to(tl.int32) > 0:
        token = start * TILE_SIZE + tl.arange(0, TILE_SIZE)
        inside = token < row.vocab_size
        x = tl.load(row.base + token, mask=inside).to(tl.float32)
        hidden = (x != x) | (x == float("-inf")) | (x < floor)
        equal = inside & tl.where(tied > float("-inf"), x == tied, hidden)
        at = place + tl.cumsum(equal.to(tl.int32), 0) - 1
        tl.store(out.ids + at, token.to(tl.int64), mask=equal & (at < n))
        tl.store(out.logprobs + at, tl.zeros_like(x) + value, mask=equal & (at < n))
        place += tl.sum(equal.to(tl.int32), 0)
        start = tl.min(tl.where((maximum >= tied) & (tile > start), tile, TILES), 0)
