"""The search for the exact edge of a large kept set: in collected logits, else in those of the whole row."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels import large_set_passes as passes
from tokendraw_triton_gumbel.kernels.bracket import Bracket, draw_from_bracket, load_bracket
from tokendraw_triton_gumbel.kernels.large_set_passes import (
    announce_pass,
    find_hits,
    finish_row,
    load_column,
    next_hit,
    row_sum,
)
from tokendraw_triton_gumbel.kernels.rows import LEAST_KEPT
from tokendraw_triton_gumbel.kernels.values import (
    INT32_MAX,
    LANES,
    LARGEST,
    LOWEST,
    TILE_SIZE,
    WORDS,
    element_ids,
    key_of,
    lane_sums,
    least_kept,
    load_logits,
    reaches,
    tile_sums,
    value_of,
    weigh,
    word_ids,
)

# Finds the edge among listed values: the largest value from which upwards they weigh, or are, a target.
#
# Reads the values some ten times. Amounts are integers: of a weight, units of 2 ** -34, so that the order
# of the list changes no sum. A search compares all values with 3 pivots at a time, until one value is left.

AT_ONCE = tl.constexpr(512)
"""Values compared at once: few, since a short loop takes less time than long code that runs once. A turn costs 0.7 us,
whether it compares 300 values or 2,000: sums of int64 over a program are five rounds of shuffles of six words."""
UNITS = tl.constexpr(2.0**34)
"""Units in the weight of the largest logit."""
_COUNT_BITS = tl.constexpr(14)
"""Lower bits of a sum that hold the number of values; the units are above them."""
_COUNT_MASK = tl.constexpr((1 << 14) - 1)


@triton.jit
def missing_amount(target, above, by_mass):
    """Return what ``above`` lacks of ``target``, float32 or float64 both, as an amount: units or numbers, int64."""
    # For the int64 alone, and only here, behind the subtraction: a list weighs at most its room, so it does not reach
    # twice that, cut or not. A target itself must not be cut: p of a huge mass may well be within a list.
    missing = tl.minimum(target.to(tl.float64) - above.to(tl.float64), 2.0 * passes.MAX_COLLECTED)
    return tl.ceil(missing * tl.where(by_mass > 0, UNITS, 1.0)).to(tl.int64)


@triton.jit
def _load_packed(values, i, count, max_logit, scale):
    """Return (values [N] at the indices i, -inf beyond ``count``; their units, with 1 in the lower bits)."""
    x = tl.load(values + i, mask=i < count, other=float("-inf"))
    return x, ((weigh(x, max_logit, scale) * UNITS).to(tl.int64) << _COUNT_BITS) + 1


@triton.jit
def _least_and_total(least_a, total_a, least_b, total_b):
    return tl.minimum(least_a, least_b), total_a + total_b


@triton.jit
def _add_three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit(noinline=True)
def survey_from(values, count, bound, max_logit, scale):
    """Return (the least value that reaches ``bound``, +inf without any; the units of all that do; their number)."""
    least = tl.full((AT_ONCE,), float("inf"), tl.float32)
    total = tl.zeros((AT_ONCE,), tl.int64)
    start = 0
    while start < count:
        x, packed = _load_packed(values, start + tl.arange(0, AT_ONCE), count, max_logit, scale)
        is_above = (x >= bound) & (x > float("-inf"))
        least = tl.minimum(least, tl.where(is_above, x, float("inf")))
        total += tl.where(is_above, packed, 0)
        start += AT_ONCE
    lowest, amount = tl.reduce((least, total), 0, _least_and_total)
    return lowest, amount >> _COUNT_BITS, (amount & _COUNT_MASK).to(tl.int32)


@triton.jit
def _weigh_from(values, count, pivot_0, pivot_1, pivot_2, max_logit, scale):
    """Return (the units from each of three pivots upwards, int64; the numbers)."""
    above_0 = tl.zeros((AT_ONCE,), tl.int64)
    above_1, above_2 = above_0, above_0
    start = 0
    while start < count:
        x, packed = _load_packed(values, start + tl.arange(0, AT_ONCE), count, max_logit, scale)
        above_0 += tl.where(x >= pivot_0, packed, 0)
        above_1 += tl.where(x >= pivot_1, packed, 0)
        above_2 += tl.where(x >= pivot_2, packed, 0)
        start += AT_ONCE
    sum_0, sum_1, sum_2 = tl.reduce((above_0, above_1, above_2), 0, _add_three)
    return (
        sum_0 >> _COUNT_BITS,
        sum_1 >> _COUNT_BITS,
        sum_2 >> _COUNT_BITS,
        (sum_0 & _COUNT_MASK).to(tl.int32),
        (sum_1 & _COUNT_MASK).to(tl.int32),
        (sum_2 & _COUNT_MASK).to(tl.int32),
    )


@triton.jit
def _count_from(values, count, pivot_0, pivot_1, pivot_2):
    """Return the number of values from each of three pivots upwards."""
    above_0 = tl.zeros((AT_ONCE,), tl.int32)
    above_1, above_2 = above_0, above_0
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        above_0 += (x >= pivot_0).to(tl.int32)
        above_1 += (x >= pivot_1).to(tl.int32)
        above_2 += (x >= pivot_2).to(tl.int32)
        start += AT_ONCE
    return tl.reduce((above_0, above_1, above_2), 0, _add_three)


@triton.jit(noinline=True)
def find_edge(values, count, low, target, max_logit, scale, ULP_STEP: tl.constexpr, BY_MASS: tl.constexpr):
    """Return the largest value from which upwards the amount reaches ``target``.

    :param low: returned if the amount from here upwards does not reach the target.
    :param target: an amount, int64: units if ``BY_MASS``, otherwise a number.
    """
    SHIFT: tl.constexpr = 16 if ULP_STEP > 1 else 0
    low_key = key_of(tl.maximum(low, LOWEST)).to(tl.int64)
    num_steps = (key_of(max_logit).to(tl.int64) - low_key >> SHIFT) + 1
    number_low = count
    number_high = tl.full((), 0, tl.int32)
    while (num_steps > 1) & (number_low - number_high > 1):
        step_0, step_1, step_2 = num_steps + 3 >> 2, num_steps >> 1, num_steps * 3 >> 2
        pivot_0 = value_of((low_key + (step_0 << SHIFT)).to(tl.int32))
        pivot_1 = value_of((low_key + (step_1 << SHIFT)).to(tl.int32))
        pivot_2 = value_of((low_key + (step_2 << SHIFT)).to(tl.int32))
        if BY_MASS:
            amount_0, amount_1, amount_2, number_0, number_1, number_2 = _weigh_from(
                values, count, pivot_0, pivot_1, pivot_2, max_logit, scale
            )
        else:
            number_0, number_1, number_2 = _count_from(values, count, pivot_0, pivot_1, pivot_2)
            amount_0, amount_1, amount_2 = number_0, number_1, number_2
        # The amounts descend: the bracket ends at the first pivot that does not reach the target.
        if amount_2 >= target:
            number_low = number_2
            low_key += step_2 << SHIFT
            num_steps -= step_2
        elif amount_1 >= target:
            number_low, number_high = number_1, number_2
            low_key += step_1 << SHIFT
            num_steps = step_2 - step_1
        elif amount_0 >= target:
            number_low, number_high = number_0, number_1
            low_key += step_0 << SHIFT
            num_steps = step_1 - step_0
        else:
            number_high = number_0
            num_steps = step_0
    edge = _least_from(values, count, value_of(low_key.to(tl.int32)))
    return tl.where(edge < float("inf"), edge, low)


@triton.jit
def _least_from(values, count, bound):
    """Return the least value that reaches ``bound``; +inf without any."""
    least = tl.full((AT_ONCE,), float("inf"), tl.float32)
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        least = tl.minimum(least, tl.where((x >= bound) & (x > float("-inf")), x, float("inf")))
        start += AT_ONCE
    return tl.min(least, 0)


@triton.jit
def find_either_edge(values, count, low, target, max_logit, scale, by_mass, ULP_STEP: tl.constexpr):
    """Return :func:`find_edge` of an amount that is known at run time: units if ``by_mass`` is above 0."""
    if by_mass > 0:
        edge = find_edge(values, count, low, target, max_logit, scale, ULP_STEP, BY_MASS=True)
    else:
        edge = find_edge(values, count, low, target, max_logit, scale, ULP_STEP, BY_MASS=False)
    return edge


# Lists tiles of a row for one program, loads their logits, and sums their weight from a value upwards.


@triton.jit
def list_tiles(maximum, tile, tiles, bound, tile_list):
    """Write the numbers of the tiles that reach ``bound`` to ``tile_list``, ascending; return their number."""
    is_listed = (maximum >= bound) & (tile < tiles)
    offset = tl.cumsum(is_listed.to(tl.int32), 0) - 1
    tl.debug_barrier()  # all threads have read the previous list
    tl.store(tile_list + offset, tile, mask=is_listed)
    tl.debug_barrier()  # the list is read by other threads
    return tl.sum(is_listed.to(tl.int32), 0)


@triton.jit
def load_listed(source, tile_list, start, count, config: tl.constexpr):
    """Return the logits of the listed tiles from ``start`` on: [LANES, WARPS, chunks, VECTOR].

    NaN and what lies outside are -inf. With them come the numbers of the tiles, and which of them are listed.
    """
    index = start + tl.arange(0, config.WARPS)
    tile = tl.load(tile_list + index, mask=index < count, other=0)
    if config.IS_ALIGNED:
        ids = element_ids(1, config.VECTOR) + (tile * TILE_SIZE)[None, :, None, None]
        mask = (index < count)[None, :, None, None] & (ids < source.vocab_size)
        x = tl.load(source.base + ids, mask=mask, other=float("-inf")).to(tl.float32)
    else:
        words = (
            word_ids(1, config.VECTOR) + (tile * (TILE_SIZE // config.VECTOR * WORDS))[None, :, None, None]
        )
        last = tl.load(tile_list + tl.minimum(start + config.WARPS, count) - 1)
        is_inner = (last + 1) * TILE_SIZE + config.VECTOR <= source.vocab_size
        x = load_logits(source, words, is_inner, config.IS_NVIDIA)
        x = tl.where((index < count)[None, :, None, None], x, float("-inf"))
    return tl.where(x == x, x, float("-inf")), tile, index < count


@triton.jit
def mass_from(source, tile_list, count, threshold, max_logit, scale, config: tl.constexpr):
    """Return the sum of ``exp(y)`` over ``x >= floor`` in the listed tiles."""
    WARPS: tl.constexpr = config.WARPS
    total = tl.zeros((WARPS,), tl.float32)
    start = 0
    while start < count:
        x, _, _ = load_listed(source, tile_list, start, count, config)
        total += tile_sums(tl.where(x >= threshold, weigh(x, max_logit, scale), 0.0))
        start += config.WARPS
    return tl.sum(total, 0)


@triton.jit
def weigh_listed(source, tile_list, count, threshold, max_logit, scale, weights, config: tl.constexpr):
    """Write the weight of each listed tile from ``threshold`` upwards into the first column of a slot."""
    start = 0
    while start < count:
        x, number, inside = load_listed(source, tile_list, start, count, config)
        total = tile_sums(tl.where(x >= threshold, weigh(x, max_logit, scale), 0.0))
        tl.store(weights + number * passes.COLUMNS, total, mask=inside)
        start += config.WARPS
    tl.debug_barrier()  # the weights are read by other threads


# Searches a row for the exact threshold of a filter: the largest value from which upwards weights sum to a target.
#
# With weight 1 and target k the threshold is the k-th largest value, with weight exp(y) and target p Z the edge of
# the nucleus. One program reads the tiles whose maximum reaches the lower bound:
#
# 1. If few values lie between the two bounds, it collects them (one read) and continues among them.
# 2. Until then each pass over the tiles sums the weight above 4 pivots: first at distances from the maximum that grow
#    by powers of two, then evenly between the bounds, then evenly in the order of the floats, which ends after 14
#    passes for any values. Ties need no room: the search finds a bracket of one value.
#
# Writes at most :data:`~.large_set_passes.MAX_COLLECTED` values a row, and a list of tiles.

_PIVOTS = tl.constexpr(4)
_EVEN_STEPS = tl.constexpr(4)
"""Steps before pivots are spread in the order of the floats."""


class SearchBracket(NamedTuple):
    """The bracket of a search: the threshold is at least ``low`` and below ``high``."""

    low: Any
    high: Any
    weight_above: Any
    """Weight of the row from ``high`` upwards."""
    count_above: Any
    """Number of values from ``high`` upwards."""
    count_inside: Any
    """Number of values in the bracket, or an upper bound of it."""


@triton.jit(noinline=True)
def collect(source, scratch, count, low, high, config: tl.constexpr):
    """Write the values in [low, high) of the listed tiles, up to the capacity; return their number."""
    num_collected = 0
    start = 0
    tl.debug_barrier()  # the previous values were read
    while start < count:
        x, tile, _ = load_listed(source, scratch.tiles, start, count, config)
        mask, hit_count, offset, max_count, total = find_hits(x, low, high, config.WARPS, config.VECTOR)
        offset += num_collected
        tile_base = source.base + (tile * TILE_SIZE)[None, :]
        i = 0
        while i < max_count:
            id_in_tile, mask = next_hit(mask, tl.arange(0, LANES)[:, None], config.VECTOR)
            is_hit = (hit_count > i) & (offset + i < passes.MAX_COLLECTED)
            tl.store(
                scratch.logits + offset + i,
                tl.load(tile_base + id_in_tile, mask=is_hit).to(tl.float32),
                mask=is_hit,
            )
            i += 1
        num_collected += total
        start += config.WARPS
    tl.debug_barrier()  # the values are read by other threads
    return num_collected


@triton.jit
def _pick_pivots(step, low, high, max_logit, spread):
    """Return four pivots, ascending: the first time by powers of two below the maximum, then evenly."""
    j = tl.arange(0, _PIVOTS)
    by_distance = max_logit - spread * tl.exp2(-j.to(tl.float32))
    finite_low = tl.maximum(low, LOWEST)
    finite_high = tl.minimum(high, LARGEST)
    share = (j + 1).to(tl.float32) / (_PIVOTS + 1.0)
    evenly = finite_low * (1.0 - share) + finite_high * share
    low_key = key_of(finite_low).to(tl.int64)
    high_key = key_of(finite_high).to(tl.int64)
    step_of = ((high_key - low_key) * (j + 1).to(tl.int64) + _PIVOTS) // (_PIVOTS + 1)
    by_order = value_of((low_key + step_of).to(tl.int32))
    pivots = tl.where(step == 0, by_distance, tl.where(step < _EVEN_STEPS, evenly, by_order))
    return tl.minimum(tl.maximum(pivots, finite_low), finite_high)


@triton.jit
def _element(values, index: tl.constexpr):
    """Return the element at ``index`` of a block of four."""
    return tl.sum(tl.where(tl.arange(0, _PIVOTS) == index, values, 0.0), 0)


@triton.jit
def _four(a, b, c, d):
    j = tl.arange(0, _PIVOTS)
    return tl.where(j == 0, a, tl.where(j == 1, b, tl.where(j == 2, c, d)))


@triton.jit
def _total(block):
    return tl.sum(tl.sum(block, 1), 0)


@triton.jit(noinline=True)
def _weigh_above(source, tile_list, count, p0, p1, p2, p3, max_logit, scale, by_mass, config: tl.constexpr):
    """Return the weight from each of four pivots upwards in the listed tiles, then the number of values."""
    WARPS: tl.constexpr = config.WARPS
    w0 = tl.zeros((LANES, WARPS), tl.float32)
    w1, w2, w3 = w0, w0, w0
    n0, n1, n2, n3 = w0, w0, w0, w0  # counts, exact in float32
    start = 0
    while start < count:
        x, _, _ = load_listed(source, tile_list, start, count, config)
        r0, r1 = reaches(x, p0, config.IS_NVIDIA), reaches(x, p1, config.IS_NVIDIA)
        r2, r3 = reaches(x, p2, config.IS_NVIDIA), reaches(x, p3, config.IS_NVIDIA)
        if by_mass:
            weight = weigh(x, max_logit, scale)
            w0 += lane_sums(weight * r0)
            w1 += lane_sums(weight * r1)
            w2 += lane_sums(weight * r2)
            w3 += lane_sums(weight * r3)
        n0 += lane_sums(r0)
        n1 += lane_sums(r1)
        n2 += lane_sums(r2)
        n3 += lane_sums(r3)
        start += config.WARPS
    return _total(w0), _total(w1), _total(w2), _total(w3), _total(n0), _total(n1), _total(n2), _total(n3)


@triton.jit
def _narrow_bracket(pivots, weight, number, low, high, above, count_above, target):
    """Return the fields of the :class:`SearchBracket` after a pass."""
    is_enough = weight >= target
    low = tl.maximum(low, tl.max(tl.where(is_enough, pivots, float("-inf")), 0))
    beyond = tl.min(tl.where(is_enough, float("inf"), pivots), 0)
    high_moved = beyond < high
    at_beyond = (pivots == beyond) & (is_enough == 0)
    above = tl.where(high_moved, tl.max(tl.where(at_beyond, weight, float("-inf")), 0), above)
    count_above = tl.where(high_moved, tl.max(tl.where(at_beyond, number, 0), 0), count_above)
    high = tl.minimum(high, beyond)
    at_low = tl.max(tl.where(pivots == low, number, 0), 0)
    count_inside = tl.where(at_low > 0, tl.maximum(at_low - count_above, 0), INT32_MAX)
    return low, high, above, count_above, count_inside


@triton.jit
def search(
    row, maximum, tile, scratch, bracket, target, max_logit, scale, spread, by_mass, config: tl.constexpr
):
    """Return the threshold of a row: the largest value from which upwards it weighs ``target``.

    :param maximum: [TILES] float32, -inf beyond the tiles; ``tile`` their numbers.
    :param bracket: :class:`SearchBracket`; the weight from its low end upwards is assumed to reach ``target``.
    :param spread: positive distance from the largest value to some other value.
    """
    source, tiles = row.source, row.tiles
    low, high, above = bracket.low, bracket.high, bracket.weight_above
    count_above, count_inside = bracket.count_above, bracket.count_inside
    count = list_tiles(maximum, tile, tiles, low, scratch.tiles)
    step = 0
    is_searching = True
    while is_searching:
        if count_inside <= passes.MAX_COLLECTED:
            count_inside = collect(source, scratch, count, low, high, config)
        if count_inside <= passes.MAX_COLLECTED:
            is_searching = False
        else:
            pivots = _pick_pivots(step, low, high, max_logit, spread)
            w0, w1, w2, w3, n0, n1, n2, n3 = _weigh_above(
                source,
                scratch.tiles,
                count,
                _element(pivots, 0),
                _element(pivots, 1),
                _element(pivots, 2),
                _element(pivots, 3),
                max_logit,
                scale,
                by_mass,
                config,
            )
            number = _four(n0, n1, n2, n3)
            weight = tl.where(by_mass, _four(w0, w1, w2, w3), number)
            number = number.to(tl.int32)
            low, high, above, count_above, count_inside = _narrow_bracket(
                pivots, weight, number, low, high, above, count_above, target
            )
            count = list_tiles(maximum, tile, tiles, low, scratch.tiles)
            step += 1
            last_key = key_of(tl.minimum(high, LARGEST)).to(tl.int64)
            if last_key - key_of(tl.maximum(low, LOWEST)).to(tl.int64) <= 1:
                count_inside = -1
                is_searching = False
    weighs = by_mass.to(tl.int32)
    missing = missing_amount(target, above, weighs)
    return find_either_edge(
        scratch.logits, count_inside, low, missing, max_logit, scale, weighs, config.ULP_STEP
    )


# Finds the threshold of a row whose bracket holds few logits, by reading the few tiles with logits in the bracket.
#
# Reads 8 bytes a tile that passes wrote, and at most 24 tiles of logits, twice; writes 4 bytes a tile. One program
# does it. Separating the last few logits by passes would take several, if the drawn token is the last kept one.

_MAX_TILES = tl.constexpr(24)
MIN_PASSES = tl.constexpr(2)
"""Passes before that: each is read by many programs, and narrows a bracket to a tenth or less."""


@triton.jit
def _bracket_weights(row, bracket, TILES: tl.constexpr):
    """Return (the weight of each tile from the low end of a bracket upwards; its weight in the bracket): [TILES].

    A tile without a logit in the bracket weighs the same from both ends upwards, bit for bit.
    """
    upper_weight = load_column(row.columns, bracket.low_column, row.tiles, TILES)
    return upper_weight, upper_weight - load_column(row.columns, bracket.high_column, row.tiles, TILES)


@triton.jit
def bracket_fits_capacity(row, bracket, goal, num_passes, config: tl.constexpr):
    """Return whether few tiles hold the bracket of a nucleus and its logits fit the scratch, by the tiles' weights."""
    reals, ints = row.reals, row.ints
    fits = (
        (goal == passes.FIND_NUCLEUS).to(tl.int32)
        * (bracket.low_column >= 0).to(tl.int32)
        * (num_passes >= MIN_PASSES).to(tl.int32)
    )
    fits *= (bracket.high_column >= 0).to(tl.int32) * (tl.load(ints + passes.KTH_INSIDE) <= 0).to(tl.int32)
    fits *= (tl.load(reals + passes.TARGET_MIN) == tl.load(reals + passes.TARGET_MAX)).to(tl.int32)
    if fits > 0:
        _, between = _bracket_weights(row, bracket, config.TILES)
        lightest = weigh(bracket.low, tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE))
        fits = (tl.sum((between != 0).to(tl.int32), 0) <= _MAX_TILES).to(tl.int32)
        fits *= (tl.sum(between, 0) <= lightest * passes.MAX_EXPECTED).to(tl.int32)
    return fits


@triton.jit(noinline=True)
def find_bracket_threshold(row, bracket, scratch, config: tl.constexpr):
    """Return (the threshold; whether the bracket's logits fitted the scratch).

    Writes the weight of every tile from the threshold upwards into the first column of the row's free slot.

    :param bracket: one that :func:`bracket_fits_capacity` accepted.
    """
    TILES: tl.constexpr = config.TILES
    source, tiles, reals, ints = row.source, row.tiles, row.reals, row.ints
    tile = tl.arange(0, TILES)
    low, high = bracket.low, bracket.high
    max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
    upper_weight, between = _bracket_weights(row, bracket, TILES)
    above = row_sum(row, bracket.high_column, 0, TILES)
    count = list_tiles(tl.where(between != 0, 1.0, 0.0), tile, tiles, 1.0, scratch.tiles)
    num_inside = collect(source, scratch, count, low, high, config)
    by_mass = (tl.load(ints + passes.GOAL) == passes.FIND_NUCLEUS).to(tl.int32)
    target = tl.load(reals + passes.TARGET_MAX)
    missing = missing_amount(target, above, by_mass)
    threshold = find_either_edge(
        scratch.logits, num_inside, low, missing, max_logit, scale, by_mass, config.ULP_STEP
    )
    weights = row.columns + tl.load(ints + passes.SLOT).to(tl.int64) * tiles * passes.COLUMNS
    tl.store(weights + tile * passes.COLUMNS, upper_weight, mask=tile < tiles)
    tl.debug_barrier()  # some of them are written again, by other threads
    weigh_listed(source, scratch.tiles, count, threshold, max_logit, scale, weights, config)
    return threshold, num_inside <= passes.MAX_COLLECTED


# Finds the exact threshold of a row that its passes did not decide, in one program: the last resort.
#
# Reads what the search for the threshold reads, from the row's bracket on; then once more the tiles that reach the
# threshold. Writes 4 bytes a tile.

_UNKNOWN_COUNT = tl.constexpr(2e9)
"""Represents an uncounted number of logits."""
_MIN_SPREAD = tl.constexpr(1e-6)
"""A distance from the largest logit at which to look first, where all tiles have the same maximum."""


@triton.jit(noinline=True)
def find_threshold(row, scratch, config: tl.constexpr):
    """Return the threshold of a row, and write the weight of every tile from the threshold upwards.

    The weights go into the first column of the row's free slot.
    """
    TILES: tl.constexpr = config.TILES
    source, tiles, reals, ints = row.source, row.tiles, row.reals, row.ints
    tile = tl.arange(0, TILES)
    maximum = tl.load(row.maxima + tile, mask=tile < tiles, other=float("-inf"))
    goal = tl.load(ints + passes.GOAL)
    bracket = load_bracket(row)
    low_column, high_column = bracket.low_column, bracket.high_column
    max_logit = tl.load(reals + passes.MAX_LOGIT)
    scale = tl.load(reals + passes.SCALE)
    p = tl.load(reals + passes.P).to(tl.float64) + tl.load(reals + passes.P_REST).to(tl.float64)
    k = tl.load(ints + passes.K)
    kth_inside = tl.load(ints + passes.KTH_INSIDE)
    target = tl.load(reals + passes.TARGET_MAX)
    threshold = tl.load(reals + passes.FLOOR)
    lowest = tl.min(tl.where(maximum > float("-inf"), maximum, max_logit), 0)
    nearby = tl.maximum(tl.abs(max_logit) * _MIN_SPREAD, _MIN_SPREAD)
    spread = tl.where(max_logit > lowest, max_logit - lowest, nearby)
    count_above = row_sum(row, high_column, passes.COUNT_COLUMN, TILES)
    above = row_sum(row, high_column, 0, TILES)
    count_inside = row_sum(row, low_column, passes.COUNT_COLUMN, TILES) - count_above
    has_columns = (low_column >= 0) & (high_column >= 0)
    needs_kth = (goal == passes.FIND_NUCLEUS) & (
        kth_inside > 0
    )  # the k-th value is still missing, and has a bracket of its own
    step = tl.where((goal == passes.FIND_NUCLEUS) & (kth_inside <= 0), 1, 0)
    end = tl.where(goal == passes.FIND_KTH, 1, 2)
    while step < end:
        by_mass = step == 1
        low, high = tl.maximum(bracket.low, LOWEST), bracket.high
        start = tl.where(by_mass, above, count_above)
        start_count = tl.where(by_mass, 0, count_above).to(tl.int32)
        max_inside = tl.where(has_columns & (goal != passes.FIND_NUCLEUS), count_inside, _UNKNOWN_COUNT).to(
            tl.int32
        )
        if needs_kth & (step == 0):
            low, high = tl.load(reals + passes.KTH_LOW), tl.load(reals + passes.KTH_HIGH)
            start_count = tl.load(ints + passes.KTH_ABOVE)
            start = start_count.to(tl.float32)
            max_inside = kth_inside
        if by_mass & (needs_kth | (goal == passes.KTH_THEN_NUCLEUS)):
            count = list_tiles(maximum, tile, tiles, threshold, scratch.tiles)
            mass = mass_from(source, scratch.tiles, count, threshold, max_logit, scale, config)
            target = (p * mass.to(tl.float64)).to(tl.float32)
            low = tl.maximum(low, threshold)
            if goal == passes.KTH_THEN_NUCLEUS:
                low = threshold
                high = tl.full((), float("inf"), tl.float32)
                start = tl.full((), 0.0, tl.float32)
            max_inside = tl.full((), _UNKNOWN_COUNT, tl.float32).to(tl.int32)
        required_mass = tl.where(by_mass, target, k.to(tl.float32))
        is_worthwhile = required_mass > 0
        if goal == passes.FIND_LARGER:
            # The larger of the two thresholds is in the bracket; the smaller may lie below.
            offset = tl.where(by_mass, 0, passes.COUNT_COLUMN)
            at_low = row_sum(row, low_column, offset, TILES)
            is_worthwhile = (low_column < 0) | (at_low >= required_mass)
        if is_worthwhile:
            search_bracket = SearchBracket(low, high, start, start_count, max_inside)
            filter_threshold = search(
                row,
                maximum,
                tile,
                scratch,
                search_bracket,
                required_mass,
                max_logit,
                scale,
                spread,
                by_mass,
                config,
            )
            threshold = tl.maximum(threshold, filter_threshold)
        step += 1
    threshold = tl.minimum(threshold, max_logit)
    weights = row.columns + tl.load(ints + passes.SLOT).to(tl.int64) * tiles * passes.COLUMNS
    tl.store(weights + tile * passes.COLUMNS, tl.zeros_like(maximum), mask=tile < tiles)
    count = list_tiles(maximum, tile, tiles, threshold, scratch.tiles)
    weigh_listed(source, scratch.tiles, count, threshold, max_logit, scale, weights, config)
    return threshold


# Finds the threshold of a row among its collected logits; draws a row whose kept set was collected as a whole.
#
# Reads at most 8192 ids and their logits, which it copies, and then the copy some ten times; one program does it.
# Sums of weights are integers, in units of 2 ** -48: the order of the list, which differs from run to run, changes
# none of them. A set that is too large for the list, or that begins below it, is left to passes that weigh.

_TILE_UNITS = tl.constexpr(2.0**48)
"""Units in the weight of the largest logit, of the weights of tiles: sums of integers do not depend on the order."""


@triton.jit(noinline=True)
def _copy_logits(base, collected, count, values):
    """Write the ``count`` collected logits as float32 to ``values``."""
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        token = tl.load(collected + i, mask=i < count, other=0)
        tl.store(values + i, tl.load(base + token, mask=i < count).to(tl.float32), mask=i < count)
        start += AT_ONCE
    tl.debug_barrier()  # the copy is read by other threads


@triton.jit(noinline=True)
def find_bracket_edge(row, scratch, out, config: tl.constexpr):
    """Find the threshold of a nucleus among the collected logits of its bracket; return whether the list held all."""
    reals, ints = row.reals, row.ints
    count = tl.load(ints + passes.NUM_COLLECTED)
    fits = (count <= passes.MAX_COLLECTED).to(tl.int32)
    if fits > 0:
        _copy_logits(row.source.base, row.collected, count, scratch.logits)
        max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
        low, high_column = tl.load(reals + passes.LOW), tl.load(ints + passes.HIGH_COLUMN)
        above = row_sum(row, high_column, 0, config.TILES)
        by_mass = tl.full((), 1, tl.int32)
        target = missing_amount(tl.load(reals + passes.TARGET_MAX), above, by_mass)
        edge = find_edge(scratch.logits, count, low, target, max_logit, scale, config.ULP_STEP, BY_MASS=True)
        _, mass, _ = survey_from(scratch.logits, count, edge, max_logit, scale)
        tl.store(out.threshold, edge)
        kept_mass = (above.to(tl.float64) + mass.to(tl.float64) / UNITS).to(tl.float32)
        tl.store(out.log_kept, tl.log(tl.minimum(kept_mass / tl.load(reals + passes.MASS), 1.0)))
    return fits


@triton.jit
def _find_set_threshold(row, values, count, ULP_STEP: tl.constexpr):
    """Return (the threshold of a row; whether the collected logits contain the kept set)."""
    reals, ints = row.reals, row.ints
    max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
    goal = tl.load(ints + passes.GOAL_BEFORE)
    k = tl.load(ints + passes.K)
    is_guess = (tl.load(reals + passes.LOW) > tl.load(reals + passes.LOWER_LIMIT)).to(tl.int32)
    is_kth = ((goal == passes.FIND_KTH) | (goal == passes.KTH_THEN_NUCLEUS)).to(tl.int32)
    is_larger = (goal == passes.FIND_LARGER).to(tl.int32)
    threshold = tl.load(reals + passes.LOW)
    # Without a filter that ends above the list, its low end is the threshold.
    is_found = 1 - is_guess
    is_too_short = is_kth * is_guess * (count < k).to(tl.int32)
    if is_kth + is_larger > 0:
        if count >= k:
            number = k.to(tl.int64)
            threshold = find_edge(values, count, threshold, number, max_logit, scale, ULP_STEP, BY_MASS=False)
            is_found = tl.full((), 1, tl.int32)
    if (
        (goal == passes.FIND_NUCLEUS)
        | (goal == passes.KTH_THEN_NUCLEUS)
        | (goal == passes.FLOOR_THEN_NUCLEUS)
        | (is_larger > 0)
    ):
        _, total, _ = survey_from(values, count, threshold, max_logit, scale)
        mass = total.to(tl.float64)
        if (goal == passes.FIND_NUCLEUS) | (goal == passes.FIND_LARGER):
            # The row's whole mass, not only what a list could hold: p of it may still be within the list. At most
            # 2 ** 21 ids weigh 2 ** 55 units, which an int64 holds.
            mass = tl.load(reals + passes.MASS).to(tl.float64) * UNITS
        p = tl.load(reals + passes.P).to(tl.float64) + tl.load(reals + passes.P_REST).to(tl.float64)
        target = tl.ceil(p * mass).to(tl.int64)
        if (total >= target).to(tl.int32) * (1 - is_too_short) > 0:
            edge = find_edge(values, count, threshold, target, max_logit, scale, ULP_STEP, BY_MASS=True)
            threshold = tl.maximum(threshold, edge)
            is_found = tl.full((), 1, tl.int32)
        elif (is_larger == 0).to(tl.int32) * is_guess > 0:
            is_found = tl.full((), 0, tl.int32)
    return tl.minimum(threshold, max_logit), is_found


@triton.jit(noinline=True)
def _weigh_tiles(row, values, count, threshold, slot, high_column, TILES: tl.constexpr):
    """Write the weight of each tile from the threshold upwards into the first column of a slot.

    :param values: the ``count`` collected logits; ``high_column`` is that of the weights above them, or -1.
    :param slot: its units are 0.
    """
    tiles = row.tiles
    max_logit, scale = tl.load(row.reals + passes.MAX_LOGIT), tl.load(row.reals + passes.SCALE)
    weights = row.columns + slot.to(tl.int64) * tiles * passes.COLUMNS
    units = weights.to(tl.pointer_type(tl.int64)) + passes.UNIT_COLUMN
    start = 0
    while start < count:
        i = start + tl.arange(0, AT_ONCE)
        x = tl.load(values + i, mask=i < count, other=float("-inf"))
        tile = tl.load(row.collected + i, mask=i < count, other=0) // TILE_SIZE
        amount = (weigh(x, max_logit, scale) * _TILE_UNITS).to(tl.int64)
        tl.atomic_add(
            units + tile * (passes.COLUMNS // 2), amount, mask=(i < count) & (x >= threshold), sem="relaxed"
        )
        start += AT_ONCE
    tl.debug_barrier()  # all threads have added; the sums are read past the L1
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    total = (
        tl.load(units + tile * (passes.COLUMNS // 2), mask=inside, other=0, volatile=True).to(tl.float32)
        / _TILE_UNITS
    )
    tl.store(
        weights + tile * passes.COLUMNS,
        load_column(row.columns, high_column, tiles, TILES) + total,
        mask=inside,
    )
    tl.debug_barrier()  # the weights are read by other threads


@triton.jit(noinline=True)
def find_kth(row, scratch, low, high_column, config: tl.constexpr):
    """Find the k-th value among the collected logits of its bracket; return (the value, whether the list held all).

    Writes the weights of the tiles from there upwards into the first column of the row's slot, and the number of logits
    into the first of its counts.
    """
    tiles, reals, ints = row.tiles, row.reals, row.ints
    count = tl.load(ints + passes.NUM_COLLECTED)
    fits = (count <= passes.MAX_COLLECTED).to(tl.int32)
    threshold = low
    if fits > 0:
        _copy_logits(row.source.base, row.collected, count, scratch.logits)
        max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
        above = row_sum(row, high_column, passes.COUNT_COLUMN, config.TILES)
        by_mass = tl.full((), 0, tl.int32)
        target = missing_amount(tl.load(ints + passes.K).to(tl.float32), above, by_mass)
        threshold = find_edge(
            scratch.logits, count, low, target, max_logit, scale, config.ULP_STEP, BY_MASS=False
        )
        _, _, number = survey_from(scratch.logits, count, threshold, max_logit, scale)
        slot = tl.load(ints + passes.SLOT)
        _weigh_tiles(row, scratch.logits, count, threshold, slot, high_column, config.TILES)
        tile = tl.arange(0, config.TILES)
        numbers = row.columns + slot.to(tl.int64) * tiles * passes.COLUMNS + passes.COUNT_COLUMN
        tl.store(
            numbers + tile * passes.COLUMNS,
            tl.where(tile == 0, above + number.to(tl.float32), 0.0),
            mask=tile < tiles,
        )
        tl.debug_barrier()  # the numbers are read by other threads
    return threshold, fits


@triton.jit(noinline=True)
def finish_collected_set(row, rows, scratch, queue, flags, out, config: tl.constexpr):
    """Draw the row if its kept set was collected; otherwise announce the pass that weighs around the first pivots.

    The parameters are those of :func:`~.large_set.finish_pass`.
    """
    reals, ints = row.reals, row.ints
    count = tl.load(ints + passes.NUM_COLLECTED)
    slot = tl.load(ints + passes.SLOT)
    threshold = tl.load(reals + passes.LOW)
    is_found = tl.full((), 0, tl.int32)
    if count <= passes.MAX_COLLECTED:
        _copy_logits(row.source.base, row.collected, count, scratch.logits)
        threshold, is_found = _find_set_threshold(row, scratch.logits, count, config.ULP_STEP)
    if is_found > 0:
        no_column = tl.full((), -1, tl.int32)
        _weigh_tiles(row, scratch.logits, count, threshold, slot, no_column, config.TILES)
        bracket = Bracket(threshold, threshold, slot * passes.COLUMNS, slot * passes.COLUMNS)
        is_exact = tl.full((), 1, tl.int32)
        draw_from_bracket(row, bracket, is_exact, flags, out, config)
        if (flags & LEAST_KEPT) != 0:
            max_logit, scale = tl.load(reals + passes.MAX_LOGIT), tl.load(reals + passes.SCALE)
            least, _, _ = survey_from(scratch.logits, count, threshold, max_logit, scale)
            tl.store(out.least_kept, least_kept(row.source, row.maxima, row.tiles, least, is_exact))
        finish_row(queue)
    else:
        tl.store(reals + passes.LOW, tl.load(reals + passes.LOWER_LIMIT))
        tl.store(ints + passes.GOAL, tl.load(ints + passes.GOAL_BEFORE))
        tl.store(ints + passes.ROUND, 1)
        announce_pass(queue, row.number.to(tl.int32), rows)
