"""One row's log-probabilities and rank, and its N best without a sort.

A granule is 64 logits of one tile; the pass over the tiles has left the maximum of each. Only granules that reach the
drawn token or a bound on the N-th value are read, each once, so about N + rank of them. Candidates for the best are what
reaches the bound; comparing all of them with each other gives each its place.

Where more than :data:`FEW` logits reach the bound, by ties or because the best lie close together, those granules are
read again: a search by 8 pivots at a time ends at ``FEW`` candidates or at the N-th value itself, whose ties are then
taken by their ids, from tile to tile. At most 11 rounds; ties of the bound itself take one.

Writes the result, and as scratch a list of granules and at most ``FEW`` candidates, which it reads back.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.bounds import bound_by_tiles
from tokendraw_triton_gumbel.order import LEAST, key_of, value_of

FEW = 128
"""Candidates that are compared with each other; also granules up to which rank and candidates share one read."""

_LEAST_KEY = tl.constexpr(-(1 << 63))
_PIVOTS = tl.constexpr(8)
_CLOSE = tl.constexpr(8)
"""Maxima beyond N at which a bound is good enough,"""
_COARSE = tl.constexpr(1 << 13)
"""or when it is so close in the order of the floats: one step of float16."""
_LISTED_AT_ONCE = tl.constexpr(2048)
_GRANULES_AT_ONCE = tl.constexpr(16)
_COUNTED_AT_ONCE = tl.constexpr(16)
"""Granules for each logit of a vector, where all that happens to them is a count."""


@triton.jit(
    do_not_specialize=["tiles", "width"],
    # Read or written one by one, or at places that are not multiples of anything.
    do_not_specialize_on_alignment=[
        *("token_ids", "temperature", "row_index", "wanted", "maxima", "sums", "floors", "log_kept_mass"),
        *("ids", "values", "ranks"),
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
    ranks,
    HAS_TEMPERATURE: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    HAS_WANTED: tl.constexpr,
    SCALED: tl.constexpr,
    NORMALISED: tl.constexpr,
    PROCESSED: tl.constexpr,
    VECTOR: tl.constexpr,
    TILES: tl.constexpr,
    PROOF: tl.constexpr,
    FEW: tl.constexpr,
):
    """One program: one row.

    The tensors are those of :func:`~tokendraw_triton_gumbel.logprobs.describe`, and these:

    :param width: N, at most 64.
    :param wanted: [slots] integer, how many of the N each row asked for; below 0: all.
    :param listed: [rows, tiles * 16] int32 of scratch, and ``keys`` [rows, FEW] int64.
    :param ids: [rows, 1 + N] int64, ``values`` [rows, 1 + N] float32, ``ranks`` [rows] int64: the result.
    :param HAS_TEMPERATURE: False in raw modes, which know no greedy rows either.
    :param PROOF: 0: the maxima of the tiles bound the N-th value; else those of at most so many quarters of tiles do.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = row
    if HAS_INDEX:
        slot = tl.load(row_index + row).to(tl.int64)
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
    granule = tl.arange(0, _LISTED_AT_ONCE)
    first = tl.load(granules + granule, mask=granule < tiles * 16)
    inverse, greedy = _inverse_temperature(temperature, slot, HAS_TEMPERATURE)
    n = tl.minimum(width, vocab_size)
    if HAS_WANTED:
        asked = tl.load(wanted + slot).to(tl.int64)
        n = tl.where((asked >= 0) & (asked < n), asked, n).to(tl.int32)
    top = tl.max(maximum, 0)
    shift = tl.zeros((), tl.float32)
    if NORMALISED:
        sum_of = tl.abs(tl.load(sums + row * tiles + tile, mask=tile < tiles, other=0.0))
        scale = tl.minimum(tl.maximum(inverse, 1e-37), 2e38).to(tl.float32) * 1.4426950408889634
        distance = tl.where(maximum == top, 0.0, maximum - top)
        shift = tl.log(tl.sum(sum_of * tl.exp2(distance * scale), 0))
    floor = tl.full((), float("-inf"), tl.float32)
    if PROCESSED:
        floor = tl.load(floors + row)
        if NORMALISED:
            shift += tl.load(log_kept_mass + row)
    x = tl.load(base + token).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    own = _shown(x, top, inverse, shift, floor, SCALED, PROCESSED)
    own = tl.where(greedy, tl.where(top > float("-inf"), 0.0, float("-inf")), own)
    tl.store(ids, token)
    tl.store(values, own)

    # Greedy rows see one token, so their best are known; the others have theirs searched for.
    searched = tl.where(greedy, 0, n)
    low = tl.full((), float("inf"), tl.float32)
    if searched > 0:
        if PROOF > 0:
            i = tl.arange(0, PROOF)[:, None] * 4 + tl.arange(0, 4)[None, :]
            proof = tl.load(granules + i, mask=i < tiles * 16).to(tl.float32)
            low = bound(tl.max(tl.where(i < tiles * 16, proof, float("-inf")), 1), top, searched)
        else:
            finite = maximum > float("-inf")
            least = tl.min(tl.where(finite, maximum, float("inf")), 0)
            low = bound_by_tiles(maximum, top, least, tl.sum(finite.to(tl.int32), 0), searched, TILES)
        low = tl.maximum(tl.maximum(low, floor), LEAST)
    reach = tl.where(x > float("-inf"), tl.minimum(x, low), low)
    tied = tl.full((), float("-inf"), tl.float32)
    rank = tl.zeros((), tl.int32)
    found = tl.zeros((), tl.int32)
    working = 1
    while working > 0:
        working = 0
        count = list_granules(granules, first, tiles * 16, reach, listed)
        if count <= FEW:
            found, reached = collect(base, vocab_size, listed, count, low, x, keys, VECTOR, FEW)
            rank = tl.maximum(rank, reached)
        else:
            found = count  # at least, where the list is of no more than what may hold the best
            if rank == 0:
                rank = count_logits(base, vocab_size, listed, count, x, VECTOR)
        if (found > FEW).to(tl.int32) * (searched > 0).to(tl.int32) > 0:
            working = 1
            if (count <= FEW).to(tl.int32) + (reach >= low).to(tl.int32) > 0:
                low, tied = search(base, vocab_size, listed, count, low, top, searched, VECTOR, FEW)
            reach = low
            first = tl.load(granules + granule, mask=granule < tiles * 16)
    tl.store(ranks + row, tl.where(x > float("-inf"), rank, vocab_size).to(tl.int64))

    if searched > 0:
        candidate, id_of, place = order(keys, found, FEW)
        shown = _shown(candidate, top, inverse, shift, floor, SCALED, PROCESSED)
        is_best = (tl.arange(0, FEW) < found) & (place < searched)
        tl.store(ids + 1 + place, id_of, mask=is_best)
        tl.store(values + 1 + place, shown, mask=is_best)
        if found < searched:
            edge = _shown(tied, top, inverse, shift, floor, SCALED, PROCESSED)
            fill(base, vocab_size, maxima, tiles, tied, floor, found, searched, edge, ids + 1, values + 1)
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
def _inverse_temperature(temperature, slot, HAS_TEMPERATURE: tl.constexpr):
    """(1 / T in float64, finite so that 0 times it is 0; whether the row is greedy)."""
    if HAS_TEMPERATURE:
        value = tl.load(temperature + slot).to(tl.float64)
        greedy = (value > 0) == 0  # 0, below, and NaN
        value = tl.where(greedy, 1.0, tl.minimum(value, 1.7e308))
        inverse = tl.minimum(1.0 / value, 1.7e308)
    else:
        greedy = slot < 0
        inverse = tl.full((), 1.0, tl.float64)
    return inverse, greedy


@triton.jit
def _shown(x, top, inverse, shift, floor, SCALED: tl.constexpr, PROCESSED: tl.constexpr):
    """What the mode shows of logits: ``(x - max x) / T - shift``, -inf below the floor; or themselves."""
    if SCALED:
        y = tl.where(x == top, 0.0, x.to(tl.float64) - top.to(tl.float64)) * inverse - shift.to(tl.float64)
        if PROCESSED:
            y = tl.where(x >= floor, y, float("-inf"))
        x = tl.where(top > float("-inf"), y, float("-inf")).to(tl.float32)
    return x


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
def list_granules(granules, first, total, low, listed):
    """Write the numbers of the granules that reach ``low`` to ``listed``; returns how many. ``first`` has been loaded."""
    count = tl.zeros((), tl.int32)
    start = 0
    maximum = first
    tl.debug_barrier()  # nobody reads the last list any more
    while start < total:
        number = start + tl.arange(0, _LISTED_AT_ONCE)
        upcoming = number + _LISTED_AT_ONCE
        following = tl.load(granules + upcoming, mask=upcoming < total)
        hot = (maximum.to(tl.float32) >= low) & (number < total)
        place = count + tl.cumsum(hot.to(tl.int32), 0) - 1
        tl.store(listed + place, number, mask=hot)
        count += tl.sum(hot.to(tl.int32), 0)
        start += _LISTED_AT_ONCE
        maximum = following
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
def count_logits(base, vocab_size, listed, count, low, VECTOR: tl.constexpr):
    """How many logits of the listed granules are at least ``low``."""
    total = tl.zeros((_COUNTED_AT_ONCE * VECTOR,), tl.int32)
    start = 0
    while start < count:
        x, _ = load_granules(base, vocab_size, listed, start, count, VECTOR, _COUNTED_AT_ONCE * VECTOR)
        total += tl.sum(tl.sum((x >= low).to(tl.int32), 2), 1)
        start += _COUNTED_AT_ONCE * VECTOR
    return tl.sum(total, 0)


@triton.jit
def collect(base, vocab_size, listed, count, low, own, keys, VECTOR: tl.constexpr, FEW: tl.constexpr):
    """Write the candidates, the logits from ``low`` upwards, as far as there is room.

    A key is a logit and an id in one: the larger the better, the lower the id the better among equals.

    :returns: how many candidates there are, and how many logits are at least ``own``.
    """
    found = tl.zeros((), tl.int32)
    reached = tl.zeros((_GRANULES_AT_ONCE,), tl.int32)
    start = 0
    tl.debug_barrier()  # nobody reads the last candidates any more
    while start < count:
        x, token = load_granules(base, vocab_size, listed, start, count, VECTOR, _GRANULES_AT_ONCE)
        reached += tl.sum(tl.sum((x >= own).to(tl.int32), 2), 1)
        key = (key_of(x).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
        key = tl.reshape(tl.where(x >= low, key, _LEAST_KEY), (_GRANULES_AT_ONCE * 64,), can_reorder=True)
        candidate = key > _LEAST_KEY
        place = found + tl.cumsum(candidate.to(tl.int32), 0) - 1
        tl.store(keys + place, key, mask=candidate & (place < FEW))
        found += tl.sum(candidate.to(tl.int32), 0)
        start += _GRANULES_AT_ONCE
    tl.debug_barrier()
    return found, tl.sum(reached, 0)


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
def fill(base, vocab_size, maxima, tiles, tied, floor, place, n, shown, ids, values):
    """Write the lowest ids of the logits equal to ``tied`` from ``place`` to N; -inf is also what the floor hides."""
    start = 0
    while (start < tiles).to(tl.int32) * (place < n).to(tl.int32) > 0:
        if tl.load(maxima + start) >= tied:
            token = start * 1024 + tl.arange(0, 1024)
            inside = token < vocab_size
            x = tl.load(base + token, mask=inside).to(tl.float32)
            hidden = (x != x) | (x == float("-inf")) | (x < floor)
            equal = inside & tl.where(tied > float("-inf"), x == tied, hidden)
            at = place + tl.cumsum(equal.to(tl.int32), 0) - 1
            tl.store(ids + at, token.to(tl.int64), mask=equal & (at < n))
            tl.store(values + at, tl.zeros_like(x) + shown, mask=equal & (at < n))
            place += tl.sum(equal.to(tl.int32), 0)
        start += 1
