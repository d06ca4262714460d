"""The candidates of a row for its kept set: bounds from maxima, lists, order, and the draw of a token among them."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.rows import gumbel
from tokendraw_triton_gumbel.kernels.values import (
    GRANULE_SIZE,
    GRANULES_PER_TILE,
    INT32_MAX,
    LARGEST,
    LOWEST,
    TILE_SIZE,
    WORDS,
    exceeds,
    granule_ids,
    key_of,
    load_logits,
    lowest_bit,
    reaches,
    scaled,
    weigh,
)

# Computes bounds below which no token is kept, from maxima of tiles, or of granules where tiles prove too little.
#
# A maximum is a token, so at least as many tokens reach a value as maxima do: if k maxima reach it, the threshold of
# top-k is not below. Maxima of tiles are compared in registers, twice with 32 pivots at once, of more than 512 tiles
# three times with 8; maxima of granules are read anew for each comparison, with 4.

_GRANULE_TURNS = tl.constexpr(5)
"""Comparisons with all granules; the first tells whether more are useful."""
_AT_ONCE = tl.constexpr(1024)
"""Granules compared at once."""
_HALF_WORD = tl.constexpr(32768)
"""Unit of a second number in the upper half of a word; as many granules, of 2 million ids, prove no bound."""
_PIVOT_RANGE_LOG2 = tl.constexpr(-12.0)
"""The first pivots lie below the maximum by 2 ** 0 to 2 ** -12 times the range."""


@triton.jit
def _narrow_bracket(number, target, pivot, low, high):
    """Return (the largest pivot that ``target`` maxima reach, the least pivot that fewer reach), or the old bounds."""
    high = tl.minimum(high, tl.min(tl.where(number < target, pivot, high), 0))
    return tl.maximum(low, tl.max(tl.where(number >= target, pivot, low), 0)), high


@triton.jit
def _far_pivots(low, max_logit, PIVOTS: tl.constexpr):
    """Return pivots from ``low`` upwards, at growing distances from the maximum."""
    return max_logit - (max_logit - low) * tl.exp2(
        (tl.arange(0, PIVOTS) + 1).to(tl.float32) * (_PIVOT_RANGE_LOG2 / PIVOTS)
    )


@triton.jit
def _even_pivots(low, high, PIVOTS: tl.constexpr):
    return low + (high - low) * ((tl.arange(0, PIVOTS) + 1).to(tl.float32) * (1.0 / (PIVOTS + 1)))


@triton.jit
def bound_by_tiles(maximum, max_logit, low, number, k, TILES: tl.constexpr, IS_NVIDIA: tl.constexpr = False):
    """Return about the largest value that at least ``k`` maxima reach; -inf with fewer maxima.

    :param maximum: [TILES] float32, -inf beyond the tiles.
    :param low: the least finite maximum; ``number`` the number of finite ones.
    """
    PIVOTS: tl.constexpr = 32 if TILES <= 512 else 8  # comparisons a maximum
    TURNS: tl.constexpr = 2 if TILES <= 512 else 3
    has_bound = number >= k
    high = max_logit
    pivot = _far_pivots(low, max_logit, PIVOTS)
    for _ in tl.static_range(TURNS):
        reach = tl.sum(reaches(maximum[:, None], pivot[None, :], IS_NVIDIA), 0)
        low, high = _narrow_bracket(reach, k, pivot, low, high)
        pivot = _even_pivots(low, high, PIVOTS)
    return tl.where(has_bound, low, float("-inf"))


@triton.jit
def _add_two_and_lowest(a0, a1, least_a, b0, b1, least_b):
    return a0 + b0, a1 + b1, tl.minimum(least_a, least_b)


@triton.jit
def _compare_granules(granules, count, pivot_0, pivot_1, pivot_2, pivot_3):
    """Return (the number of maxima that reach each pivot, four; the least finite maximum, or +inf).

    :param count: below ``_HALF_WORD``: a word holds two numbers.
    """
    n01 = tl.zeros((_AT_ONCE,), tl.int32)
    n23 = n01
    lowest = tl.full((_AT_ONCE,), float("inf"), tl.float32)
    start = 0
    while start < count:
        g = start + tl.arange(0, _AT_ONCE)
        x = tl.load(granules + g, mask=g < count, other=float("-inf")).to(tl.float32)
        n01 += tl.where(x >= pivot_0, 1, 0) + tl.where(x >= pivot_1, _HALF_WORD, 0)
        n23 += tl.where(x >= pivot_2, 1, 0) + tl.where(x >= pivot_3, _HALF_WORD, 0)
        lowest = tl.where(x > float("-inf"), tl.minimum(lowest, x), lowest)
        start += _AT_ONCE
    n01, n23, least = tl.reduce((n01, n23, lowest), 0, _add_two_and_lowest)
    return n01 % _HALF_WORD, n01 // _HALF_WORD, n23 % _HALF_WORD, n23 // _HALF_WORD, least


@triton.jit(noinline=True)
def bound_by_granules(granules, count, low, max_logit, k, max_count):
    """Return a value that at least ``k`` maxima of the granules reach; -inf if fewer reach ``low``, or are too many.

    The bound is ``max_logit`` if ``k`` maxima equal it; otherwise -inf if more than ``max_count`` maxima reach it.
    """
    low = tl.maximum(low, LOWEST)
    high = max_logit
    pivot_0, pivot_1, pivot_2, pivot_3 = low, low, low, max_logit
    reach = tl.full((), 0, tl.int32)
    turn = tl.where(count < _HALF_WORD, 0, _GRANULE_TURNS).to(tl.int32)
    low = tl.where(turn == 0, low, float("-inf"))
    while turn < _GRANULE_TURNS:
        n0, n1, n2, n3, lowest = _compare_granules(granules, count, pivot_0, pivot_1, pivot_2, pivot_3)
        if turn == 0:
            # The pivot at the maximum has the lowest count, the pivot at the low end the highest.
            reach = n0
            low = tl.maximum(low, tl.minimum(lowest, max_logit))
            low = tl.where(n3 >= k, max_logit, low)
            turn = tl.where((n3 >= k) | (n0 < k), _GRANULE_TURNS, 0).to(tl.int32)
            reach = tl.where(n3 >= k, 0, reach)
            low = tl.where(n0 < k, float("-inf"), low)
        elif n3 >= k:
            low, reach = pivot_3, n3
        elif n2 >= k:
            low, reach, high = pivot_2, n2, pivot_3
        elif n1 >= k:
            low, reach, high = pivot_1, n1, pivot_2
        elif n0 >= k:
            low, reach, high = pivot_0, n0, pivot_1
        else:
            high = pivot_0
        # First at distances from the maximum by powers of 8, then evenly.
        width = high - low
        is_far = turn == 0
        pivot_0 = tl.where(is_far, high - width * 0.125, low + width * 0.2)
        pivot_1 = tl.where(is_far, high - width * 0.015625, low + width * 0.4)
        pivot_2 = tl.where(is_far, high - width * 0.001953125, low + width * 0.6)
        pivot_3 = tl.where(is_far, high - width * 0.000244140625, low + width * 0.8)
        turn += 1
    return tl.where(reach <= max_count, low, float("-inf"))


# Lists the granules whose maximum reaches a bound, and the candidates among their logits.
#
# Reads the maxima of all granules, then the listed granules, then the candidates. Writes 4 bytes a granule and a
# candidate.

_NEIGHBOURS = tl.constexpr(8)
"""Neighbouring elements whose hits a single thread writes."""
_COMMON_HITS = tl.constexpr(2)
"""Hits of a thread on the common path."""
_COUNT_UNIT = tl.constexpr(65536)
"""Unit of a second count in the upper half of a word."""


@triton.jit
def _list_hits(hit, first, numbers, num_found, max_count, ROWS: tl.constexpr, EIGHTS: tl.constexpr):
    """Append the numbers of the hits to a list, ascending; return its new length, which may exceed its room.

    One thread writes the hits of eight neighbours: two on the common path, and more in a loop, since hits are few.

    :param hit: [ROWS, EIGHTS * 8] float32, 1.0 or 0.0.
    :param first: [ROWS, 1] int32: the number of the first element of a row.
    :param numbers: [max_count] int32, the first ``num_found`` written.
    """
    bit = tl.arange(0, EIGHTS * _NEIGHBOURS) % _NEIGHBOURS
    mark = (((bit * 0 + 1) << bit) + _COUNT_UNIT).to(tl.float32)  # integers, and sums, exact in float32
    packed = tl.sum(tl.reshape(hit * mark[None, :], (ROWS, EIGHTS, _NEIGHBOURS)), 2).to(tl.int32)
    mask = tl.reshape(packed & 255, (ROWS * EIGHTS,))
    label = tl.reshape(first + tl.arange(0, EIGHTS)[None, :] * _NEIGHBOURS, (ROWS * EIGHTS,))
    count = tl.reshape(packed >> 16, (ROWS * EIGHTS,))
    start = tl.cumsum(count, 0) - count + num_found
    packed_total = tl.sum(count + tl.where(count > _COMMON_HITS, _COUNT_UNIT, 0), 0)
    count = tl.minimum(start + count, max_count) - start
    for i in tl.static_range(_COMMON_HITS):
        tl.store(numbers + start + i, label + lowest_bit(mask), mask=count > i)
        mask &= mask - 1
    if packed_total >= _COUNT_UNIT:
        index = _COMMON_HITS
        end = tl.max(count, 0)  # unknown to the compiler, which therefore does not unroll the loop
        while index < end:
            tl.store(numbers + start + index, label + lowest_bit(mask), mask=count > index)
            mask &= mask - 1
            index += 1
    return num_found + (packed_total & (_COUNT_UNIT - 1))


@triton.jit
def list_granules(
    granules,
    tiles,
    bound,
    numbers,
    max_count,
    IS_NVIDIA: tl.constexpr = False,
    TILES_AT_ONCE: tl.constexpr = 256,
):
    """List the granules that reach ``bound``, ascending; return their number, which may exceed the list's room.

    :param numbers: [max_count] int32 of scratch.
    """
    num_found = 0
    start = 0
    while start < tiles:
        tile = start + tl.arange(0, TILES_AT_ONCE)[:, None]
        offset = tile * GRANULES_PER_TILE + tl.arange(0, GRANULES_PER_TILE)[None, :]
        x = tl.load(granules + offset, mask=tile < tiles, other=float("-inf")).to(tl.float32)
        first = tile * GRANULES_PER_TILE
        hit = reaches(x, bound, IS_NVIDIA)
        num_found = _list_hits(
            hit, first, numbers, num_found, max_count, TILES_AT_ONCE, GRANULES_PER_TILE // _NEIGHBOURS
        )
        start += TILES_AT_ONCE
    tl.debug_barrier()  # the list is read by other threads
    return num_found


@triton.jit
def _load_granules(row, granule, last, VECTOR: tl.constexpr, AT_ONCE: tl.constexpr, IS_NVIDIA: tl.constexpr):
    """Load the granules of a row at any address: [AT_ONCE, GRANULE_SIZE]; -inf behind the row.

    :param granule: [AT_ONCE] int32; ``last`` the largest.
    """
    first_element = tl.arange(0, GRANULE_SIZE // VECTOR)[None, :, None, None] * VECTOR
    token = granule_ids(granule[:, None, None, None], first_element, VECTOR)
    words = token // VECTOR * WORDS + tl.arange(0, WORDS)[None, None, None, :]
    is_inner = (last // GRANULES_PER_TILE + 1) * TILE_SIZE + VECTOR <= row.vocab_size
    x = load_logits(row, words, is_inner, IS_NVIDIA)
    return tl.reshape(x, (AT_ONCE, GRANULE_SIZE))


@triton.jit
def list_candidates(
    row,
    granules,
    count,
    bound,
    numbers,
    VECTOR: tl.constexpr,
    MOST: tl.constexpr,
    AT_ONCE: tl.constexpr,
    IS_NVIDIA: tl.constexpr = False,
    IS_ALIGNED: tl.constexpr = True,
):
    """List where the logits from ``bound`` upwards stand, tile by tile; return how many, listed or not.

    :param granules: [count] int32, as :func:`list_granules` leaves them.
    :param numbers: [MOST] int32 of scratch, for :func:`load_candidates`.
    """
    element = tl.arange(0, GRANULE_SIZE)
    num_found = 0
    start = 0
    while start < count:
        slot = start + tl.arange(0, AT_ONCE)
        granule = tl.load(granules + slot, mask=slot < count, other=0)
        if IS_ALIGNED:
            token = granule_ids(granule[:, None], element[None, :], VECTOR)
            inside = (slot < count)[:, None] & (token < row.vocab_size)
            x = tl.load(row.base + token, mask=inside, other=float("-inf")).to(tl.float32)
        else:
            last = tl.load(granules + tl.minimum(start + AT_ONCE, count) - 1)
            x = _load_granules(row, granule, last, VECTOR, AT_ONCE, IS_NVIDIA)
            x = tl.where((slot < count)[:, None], x, float("-inf"))
        first = granule[:, None] * GRANULE_SIZE
        hit = reaches(x, bound, IS_NVIDIA)
        num_found = _list_hits(hit, first, numbers, num_found, MOST, AT_ONCE, GRANULE_SIZE // _NEIGHBOURS)
        start = tl.where(num_found > MOST, count, start + AT_ONCE)
    tl.debug_barrier()  # the list is read by other threads
    return num_found


@triton.jit
def load_candidates(base, numbers, num_found, VECTOR: tl.constexpr, N: tl.constexpr):
    """Load (logits, ids) of the listed candidates; beyond them -inf, and the largest int32: [N] each."""
    i = tl.arange(0, N)
    offset = tl.load(numbers + i, mask=i < num_found, other=0)
    token = granule_ids(offset // GRANULE_SIZE, offset % GRANULE_SIZE, VECTOR)
    x = tl.load(base + token, mask=i < num_found, other=float("-inf")).to(tl.float32)
    return x, tl.where(i < num_found, token, INT32_MAX)


# Finds the candidates that the filters keep. No sort, and ties are kept by construction.
#
# All candidates are compared with each other: each gets the count and the mass of the strictly greater ones.


@triton.jit
def _counts_whole_row(filters):
    """Return whether top-p counts the mass of all tokens: no other filter comes first, or the order is joint."""
    num_filters = (filters.k > 0).to(tl.int32) + (filters.floor > float("-inf")).to(tl.int32)
    return num_filters * (filters.joint == 0).to(tl.int32) == 0


@triton.jit
def _mass_above(x, others, weights, BY_FACTORS: tl.constexpr):
    """Return (number of greater values in ``others``, their mass), for each x."""
    greater = exceeds(others[:, None], x[None, :], BY_FACTORS)
    return tl.sum(greater, 0), tl.sum(greater * weights[:, None], 0)


@triton.jit
def _weigh_once(x, max_logit, scale, BY_FACTORS: tl.constexpr):
    """Return (x, its weight), from a loop of one turn: all readers share the results."""
    values, weight = x, x
    turn = 0
    while turn < 1:
        if BY_FACTORS:
            values = tl.minimum(x, LARGEST)  # otherwise each reader would convert bfloat16 again
        weight = weigh(x, max_logit, scale)
        turn += 1
    return values, weight


@triton.jit
def _halves(x, N: tl.constexpr):
    """Return the first half of x, and the second."""
    return tl.split(tl.trans(tl.reshape(x, (2, N // 2))))


@triton.jit
def keep_by_comparison(x, num_candidates, scale, filters, N: tl.constexpr, BY_FACTORS: tl.constexpr):
    """Return a mask of the kept candidates, [N], by comparing every candidate with all others.

    Both halves are written out: a loop over them spilled 746 bytes in place of 24, and cost up to 50 % at 256 rows.
    """
    x, weight = _weigh_once(x, scale.max_logit, scale.scale, BY_FACTORS)
    first_half, last_half = _halves(x, N)
    first_weight, last_weight = _halves(weight, N)
    count_above, mass_above = _mass_above(x, first_half, first_weight, BY_FACTORS)
    if num_candidates > N // 2:
        last_count, last_mass = _mass_above(x, last_half, last_weight, BY_FACTORS)
        count_above += last_count
        mass_above += last_mass
    k = filters.k
    kept = (x > float("-inf")) & (count_above < tl.where(k > 0, k, N).to(tl.float32)) & (x >= filters.floor)
    if filters.p < 1:
        total_mass = scale.mass
        if _counts_whole_row(filters) == 0:
            total_mass = tl.sum(tl.where(kept, weight, 0.0), 0)
        kept = kept & (
            (mass_above < (filters.p * total_mass.to(tl.float64)).to(tl.float32)) | (count_above == 0)
        )
    return kept


# Summarises a row from the statistics of its tiles, in registers.


class TileSurvey(NamedTuple):
    """The tiles of a row."""

    maximum: Any
    """[TILES] float32, -inf beyond the tiles."""
    signed_sums: Any
    """[TILES] float32: the sums, whose sign bit marks NaN; 0 beyond the tiles."""
    max_logit: Any
    """The largest maximum."""
    min_maximum: Any
    """The least maximum that is finite or +inf; +inf if there is none."""
    num_tiles: Any
    """Number of tiles with a logit above -inf."""
    has_nan: Any


@triton.jit
def _combine(top_a, least_a, sign_a, number_a, top_b, least_b, sign_b, number_b):
    return (
        tl.maximum(top_a, top_b),
        tl.minimum(least_a, least_b),
        tl.minimum(sign_a, sign_b),
        number_a + number_b,
    )


@triton.jit
def survey_tiles(statistics, first, tiles, TILES: tl.constexpr):
    """Load the statistics of a row's tiles, from tile ``first`` on, and reduce them."""
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    maximum = tl.load(statistics.maxima + first + tile, mask=inside, other=float("-inf"))
    signed_sums = tl.load(statistics.sums + first + tile, mask=inside, other=0.0)
    is_finite = maximum > float("-inf")
    max_logit, min_maximum, sign, num_tiles = tl.reduce(
        (
            maximum,
            tl.where(is_finite, maximum, float("inf")),
            signed_sums.to(tl.int32, bitcast=True),
            is_finite.to(tl.int32),
        ),
        0,
        _combine,
    )
    return TileSurvey(maximum, signed_sums, max_logit, min_maximum, num_tiles, sign < 0)


@triton.jit
def weigh_tiles(survey, scale):
    """Return the mass of each tile relative to the largest logit of the row: [TILES]."""
    return tl.abs(survey.signed_sums) * weigh(survey.maximum, survey.max_logit, scale)


# Draws on two levels: a tile by the logarithm of its weight plus noise, then a token in this tile.

_LOW_WORD = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _same_tile(weight_a, tile_a, weight_b, tile_b):
    return tl.where(tile_a == tile_b, weight_a, 0.0) + weight_b, tile_b


@triton.jit
def running_sums(weight, tile):
    """Return the running sum of the weights in each tile: the tile's full weight at its last element."""
    total, _ = tl.associative_scan((weight, tile), 0, _same_tile)
    return total


@triton.jit
def best_of(score, label, kept):
    """Return the label of the largest kept score; the least label on a tie."""
    if score.dtype == tl.float32:
        key = key_of(tl.where(kept, score, float("-inf")))
        packed = (key.to(tl.int64) << 32) | (label ^ INT32_MAX).to(
            tl.int64
        )  # the lower the label, the larger
        best_label = (tl.max(packed, 0) & _LOW_WORD).to(tl.int32) ^ INT32_MAX
    else:
        largest = tl.max(tl.where(kept, score, float("-inf")), 0)
        best_label = tl.min(tl.where(kept & (score == largest), label, INT32_MAX), 0)
    return best_label


@triton.jit
def draw_candidate(score, weight, kept, token, key, of_token, of_tile, FP64: tl.constexpr):
    """Draw a token from candidates [N] in registers, tile by tile.

    :param score: the logarithms of the weights, up to a constant.
    :param weight: 0 of what is not kept.
    """
    tile = token // TILE_SIZE
    noise = gumbel(key, tile, of_tile, FP64)
    own_noise = gumbel(key, token, of_token, FP64)
    total = tl.where(kept, running_sums(weight, tile), 1.0)
    chosen = best_of(tl.log(total.to(noise.dtype)) + noise, tile, kept)
    return best_of(score + own_noise, token, kept & (tile == chosen))


@triton.jit
def draw_candidate_in_turns(score, weight, kept, token, key, of_token, of_tile, FP64: tl.constexpr):
    """Draw the same token with a single copy of the noise's code, which is long for many candidates."""
    tile = token // TILE_SIZE
    total = tl.where(kept, running_sums(weight, tile), 1.0)
    best_label = tl.full((), -1, tl.int32)
    level = 0
    while level < 2:
        by_tile = level == 0
        label = tl.where(by_tile, tile, token)
        noise = gumbel(key, label, tl.where(by_tile, of_tile, of_token), FP64)
        value = tl.where(by_tile, tl.log(total.to(noise.dtype)), score)
        best_label = best_of(value + noise, label, kept & (by_tile | (tile == best_label)))
        level += 1
    return best_label


@triton.jit
def draw_in_tile(row, chosen, threshold, max_logit, inverse, greedy, key, stream, FP64: tl.constexpr):
    """Draw a token of a row in a given tile, among the logits from ``threshold`` upwards."""
    members = chosen * TILE_SIZE + tl.arange(0, TILE_SIZE)
    x = tl.load(row.base + members, mask=members < row.vocab_size, other=float("-inf")).to(tl.float32)
    x = tl.where((x == x) & (x >= threshold), x, float("-inf"))
    score = scaled(x, max_logit, inverse, FP64) + gumbel(key, members, stream, FP64)
    score = tl.where(greedy, tl.where(x == max_logit, 0.0, float("-inf")).to(score.dtype), score)
    return chosen * TILE_SIZE + tl.argmax(score, 0)
