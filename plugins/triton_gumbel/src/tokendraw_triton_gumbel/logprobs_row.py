"""One row's log-probabilities, and its N best without a sort.

A granule is 64 logits of one tile; the pass over the tiles has left the maximum of each. Of a row's best only granules
that reach a bound on the N-th value are read, so about N of them. Candidates for the best are what reaches the bound;
comparing all of them with each other gives each its place.

Where more than :data:`FEW` logits reach the bound, by ties or because the best lie close together, those granules are
read again: a search by 8 pivots at a time ends at ``FEW`` candidates or at the N-th value itself, whose ties are then
taken by their ids, from tile to tile. At most 11 rounds; ties of the bound itself take one.

Writes the result, and as scratch a list of granules and at most ``FEW`` candidates, which it reads back.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.bounds import bound_by_tiles
from tokendraw_triton_gumbel.gather import list_granules as list_few
from tokendraw_triton_gumbel.order import LEAST, key_of, value_of
from tokendraw_triton_gumbel.request import NORMALISED, PROCESSED
from tokendraw_triton_gumbel.shown import degrees_of, least_shown, log_mass, shown, shown_of_drawn

FEW = 128
"""Candidates that are compared with each other."""

_LEAST_KEY = tl.constexpr(-(1 << 63))
_PIVOTS = tl.constexpr(8)
_CLOSE = tl.constexpr(8)
"""Maxima beyond N at which a bound is good enough,"""
_COARSE = tl.constexpr(1 << 13)
"""or when it is so close in the order of the floats: one step of float16."""
_LISTED_AT_ONCE = tl.constexpr(2048)
_GRANULES_AT_ONCE = tl.constexpr(16)


@triton.jit(
    do_not_specialize=["tiles", "width", "flags"],
    # Read or written one by one, or at places that are not multiples of anything.
    do_not_specialize_on_alignment=[
        *("token_ids", "temperature", "row_index", "wanted", "maxima", "sums", "floors", "log_kept_mass"),
        *("ids", "values"),
    ],
)
def row_logprobs(
    logits,
    row_stride,
    vocab_size,
    tiles,
    width,
    token_ids,
    temperature,
    row_index,
    wanted,
    maxima,
    sums,
    granules,
    floors,
    log_kept_mass,
    listed,
    keys,
    ids,
    values,
    flags,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    PROOF: tl.constexpr,
    FEW: tl.constexpr,
):
    """One program: one row.

    The tensors are those of :func:`~tokendraw_triton_gumbel.logprobs.describe`, and these:

    :param width: N, at most 64.
    :param wanted: [slots] integer, how many of the N each row asked for; below 0: all. Or None.
    :param listed: [rows, tiles * 16] int32 of scratch, and ``keys`` [rows, FEW] int64.
    :param ids: [rows, 1 + N] int64, ``values`` [rows, 1 + N] float32: the result.
    :param flags: what the mode shows of logits: see :mod:`.request`.
    :param PROOF: 0: the maxima of the tiles bound the N-th value; else those of at most so many quarters of tiles do.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if row_index is not None:
        slot = tl.load(row_index + row).to(tl.int64)
    asked = width
    if wanted is not None:
        asked = tl.load(wanted + slot).to(tl.int32)
    base = logits + row * row_stride
    maxima += row * tiles
    granules += row * tiles * 16
    listed += row * tiles * 16
    keys += row * FEW
    ids += row * (1 + width)
    values += row * (1 + width)
    token = tl.load(token_ids + row)
    tile = tl.arange(0, TILES)
    maximum = tl.load(maxima + tile, mask=tile < tiles, other=float("-inf"))
    degrees, inverse, greedy = degrees_of(temperature, slot, flags)
    n = tl.minimum(width, vocab_size)
    n = tl.where((asked >= 0) & (asked < n), asked, n).to(tl.int32)
    top = tl.max(maximum, 0)
    shift = log_mass(
        maximum, tl.load(sums + row * tiles + tile, mask=tile < tiles, other=0.0), top, inverse, flags
    )
    least = least_shown(top, degrees, flags)
    if (flags & PROCESSED) != 0:
        least = tl.maximum(least, tl.load(floors + row))
        shift += tl.where((flags & NORMALISED) != 0, tl.load(log_kept_mass + row), 0.0)
    own = shown_of_drawn(base, token, top, inverse, shift, least, greedy, flags)
    tl.store(ids, token)
    tl.store(values, own)

    # Greedy rows see one token, so their best are known; the others have theirs searched for.
    searched = tl.where(greedy, 0, n)
    if searched > 0:
        if PROOF > 0:
            i = tl.arange(0, PROOF)[:, None] * 4 + tl.arange(0, 4)[None, :]
            proof = tl.load(granules + i, mask=i < tiles * 16).to(tl.float32)
            low = bound(tl.max(tl.where(i < tiles * 16, proof, float("-inf")), 1), top, searched)
        else:
            finite = maximum > float("-inf")
            lowest = tl.min(tl.where(finite, maximum, float("inf")), 0)
            low = bound_by_tiles(maximum, top, lowest, tl.sum(finite.to(tl.int32), 0), searched, TILES)
        low = tl.maximum(tl.maximum(low, least), LEAST)
        tied = tl.full((), float("-inf"), tl.float32)
        count = tl.zeros((), tl.int32)
        found = tl.zeros((), tl.int32)
        if tl.sum((maximum == top).to(tl.int32), 0) * (top > float("-inf")).to(tl.int32) >= searched:
            tied = top  # so many tiles hold the largest logit that all of the best are it
        else:
            count = list_few(granules, tiles, low, listed, FEW)
            if count > FEW:
                count = list_granules(granules, tiles * 16, low, listed)
            found = collect(base, vocab_size, listed, count, low, keys, VECTOR, FEW)
        if found > FEW:
            low, tied = search(base, vocab_size, listed, count, low, top, searched, VECTOR, FEW)
            count = list_granules(granules, tiles * 16, low, listed)
            found = collect(base, vocab_size, listed, count, low, keys, VECTOR, FEW)
        candidate, id_of, place = order(keys, found, FEW)
        value = shown(candidate, top, inverse, shift, least, flags)
        is_best = (tl.arange(0, FEW) < found) & (place < searched)
        tl.store(ids + 1 + place, id_of, mask=is_best)
        tl.store(values + 1 + place, value, mask=is_best)
        if found < searched:
            edge = shown(tied, top, inverse, shift, least, flags)
            fill(
                base,
                vocab_size,
                maximum,
                tiles,
                tied,
                least,
                found,
                searched,
                edge,
                ids + 1,
                values + 1,
                TILES,
            )
    place = tl.arange(0, 64)
    if searched < n:
        others = place - (place <= token).to(tl.int32)
        own_first = tl.where(place == 0, token, others.to(tl.int64))
        tl.store(ids + 1 + place, own_first, mask=place < n)
        tl.store(values + 1 + place, tl.where(place == 0, own, float("-inf")), mask=place < n)
    padded = (place >= n) & (place < width)
    tl.store(ids + 1 + place, tl.full((64,), -1, tl.int64), mask=padded)
    tl.store(values + 1 + place, tl.full((64,), float("-inf"), tl.float32), mask=padded)


@triton.jit
def _pivots_of(first, last):
    """Keys [_PIVOTS] in (first, last]: the one after ``first``, whose ties may be all that is wrong, then evenly."""
    j = tl.arange(0, _PIVOTS)
    return first + tl.where(j == 0, 1, ((last - first) * j + _PIVOTS - 1) // _PIVOTS)


@triton.jit
def _narrowed(first, last, count, pivots, counts, n):
    """The bracket [first, last) of the key of the N-th value, and how many reach ``first``."""
    enough = counts >= n
    first = tl.maximum(first, tl.max(tl.where(enough, pivots, first), 0))
    last = tl.minimum(last, tl.min(tl.where(enough, last, pivots), 0))
    fewest = tl.min(tl.where(enough, counts, 2147483647), 0)
    return first, last, tl.where(fewest < 2147483647, fewest, count)


@triton.jit
def bound(maxima, top, n):
    """The largest value, about, that at least N of the maxima reach; -inf if fewer are above that.

    :param top: the largest of them.
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
def list_granules(granules, total, low, listed):
    """Write the numbers of the granules that reach ``low`` to ``listed``, however many; returns how many."""
    count = tl.zeros((), tl.int32)
    start = 0
    tl.debug_barrier()  # nobody reads the last list any more
    while start < total:
        number = start + tl.arange(0, _LISTED_AT_ONCE)
        maximum = tl.load(granules + number, mask=number < total)
        hot = (maximum.to(tl.float32) >= low) & (number < total)
        place = count + tl.cumsum(hot.to(tl.int32), 0) - 1
        tl.store(listed + place, number, mask=hot)
        count += tl.sum(hot.to(tl.int32), 0)
        start += _LISTED_AT_ONCE
    tl.debug_barrier()
    return count


@triton.jit
def load_granules(base, vocab_size, listed, start, count, VECTOR: tl.constexpr, AT_ONCE: tl.constexpr):
    """Logits [AT_ONCE, chunks, 2 VECTOR] of the listed granules from ``start`` on, and their ids; what is none is -inf.

    NaN is left as it is: it reaches nothing. Granule g of a tile is what lanes 2 g and 2 g + 1 of the pass over it hold:
    of every 32 vectors those two.
    """
    slot = start + tl.arange(0, AT_ONCE)
    number = tl.load(listed + slot, mask=slot < count, other=0)
    chunk = tl.arange(0, 32 // VECTOR)[None, :, None] * (32 * VECTOR)
    token = ((number >> 4) * 1024 + (number & 15) * (2 * VECTOR))[:, None, None] + chunk
    token += tl.arange(0, 2 * VECTOR)[None, None, :]
    inside = (slot < count)[:, None, None] & (token < vocab_size)
    x = tl.load(base + token, mask=inside).to(tl.float32)
    return tl.where(inside, x, float("-inf")), token


@triton.jit
def collect(base, vocab_size, listed, count, low, keys, VECTOR: tl.constexpr, FEW: tl.constexpr):
    """Write the candidates, the logits from ``low`` upwards, as far as there is room; returns how many there are.

    Where there is no more room, that many or fewer. A key is a logit and an id in one: the larger the better, the lower
    the id the better among equals.
    """
    found = tl.zeros((), tl.int32)
    start = 0
    tl.debug_barrier()  # nobody reads the last candidates any more
    while start < count:
        x, token = load_granules(base, vocab_size, listed, start, count, VECTOR, _GRANULES_AT_ONCE)
        key = (key_of(x).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
        key = tl.reshape(tl.where(x >= low, key, _LEAST_KEY), (_GRANULES_AT_ONCE * 64,), can_reorder=True)
        candidate = key > _LEAST_KEY
        place = found + tl.cumsum(candidate.to(tl.int32), 0) - 1
        tl.store(keys + place, key, mask=candidate & (place < FEW))
        found += tl.sum(candidate.to(tl.int32), 0)
        start = tl.where(found > FEW, count, start + _GRANULES_AT_ONCE)
    tl.debug_barrier()
    return found


@triton.jit
def order(keys, found, FEW: tl.constexpr):
    """The candidates [FEW]: their logits, ids, and places by value, the lowest id first on a tie."""
    i = tl.arange(0, FEW)
    key = tl.load(keys + i, mask=i < found, other=_LEAST_KEY)
    place = tl.zeros((FEW,), tl.int32)
    start = 0
    while start < found:
        j = start + tl.arange(0, 32)
        others = tl.load(keys + j, mask=j < found, other=_LEAST_KEY)
        place += tl.sum((others[:, None] > key[None, :]).to(tl.int32), 0)
        start += 32
    return value_of((key >> 32).to(tl.int32)), 0x7FFFFFFF - (key & 0x7FFFFFFF), place


@triton.jit
def search(base, vocab_size, listed, count, low, top, n, VECTOR: tl.constexpr, FEW: tl.constexpr):
    """(the value from which upwards to collect at most ``FEW`` candidates, the one whose ties fill up to N or -inf)."""
    first = key_of(low).to(tl.int64)
    last = key_of(top).to(tl.int64) + 1
    number = tl.full((), FEW + 1, tl.int32)
    while (number > FEW).to(tl.int32) * (last - first > 1).to(tl.int32) > 0:
        pivots = _pivots_of(first, last)
        pivot = value_of(pivots.to(tl.int32))[None, :]
        counts = tl.zeros((_PIVOTS,), tl.int32)
        start = 0
        while start < count:
            x, _ = load_granules(base, vocab_size, listed, start, count, VECTOR, _GRANULES_AT_ONCE)
            flat = tl.reshape(x, (_GRANULES_AT_ONCE * 64,), can_reorder=True)
            counts += tl.sum((flat[:, None] >= pivot).to(tl.int32), 0)
            start += _GRANULES_AT_ONCE
        first, last, number = _narrowed(first, last, number, pivots, counts, n)
    edge = value_of(first.to(tl.int32))
    above = value_of((first + 1).to(tl.int32))  # NaN above inf: nothing is
    return tl.where(number > FEW, above, edge), tl.where(number > FEW, edge, float("-inf"))


@triton.jit
def fill(base, vocab_size, maximum, tiles, tied, floor, place, n, value, ids, values, TILES: tl.constexpr):
    """Write the lowest ids of the logits equal to ``tied`` from ``place`` to N; -inf is also what the floor hides.

    :param maximum: [TILES] of the tiles.
    """
    tile = tl.arange(0, TILES)
    start = tl.min(tl.where(maximum >= tied, tile, TILES), 0)
    while (start < tiles).to(tl.int32) * (place < n).to(tl.int32) > 0:
        token = start * 1024 + tl.arange(0, 1024)
        inside = token < vocab_size
        x = tl.load(base + token, mask=inside).to(tl.float32)
        hidden = (x != x) | (x == float("-inf")) | (x < floor)
        equal = inside & tl.where(tied > float("-inf"), x == tied, hidden)
        at = place + tl.cumsum(equal.to(tl.int32), 0) - 1
        tl.store(ids + at, token.to(tl.int64), mask=equal & (at < n))
        tl.store(values + at, tl.zeros_like(x) + value, mask=equal & (at < n))
        place += tl.sum(equal.to(tl.int32), 0)
        start = tl.min(tl.where((maximum >= tied) & (tile > start), tile, TILES), 0)
