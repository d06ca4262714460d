"""Searches a row for the exact threshold of a filter: the largest value from which upwards weights sum to a target.

With weight 1 and target k the threshold is the k-th largest value, with weight exp(y) and target p Z the edge of the
nucleus. One program reads the tiles whose maximum reaches the lower bound:

1. If few values lie between the two bounds, it collects them (one read) and continues among them.
2. Until then each pass over the tiles sums the weight above 4 pivots: first at distances from the maximum that grow by
   powers of two, then evenly between the bounds, then evenly in the order of the floats, which ends after 14 passes for
   any values. Ties need no room: the search finds a bracket of one value.

Writes at most :data:`~.row_state.MAX_COLLECTED` values a row, and a list of tiles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.passes.hits import find_hits, next_hit
from tokendraw_triton_gumbel.kernels.large_set.row_state import MAX_COLLECTED
from tokendraw_triton_gumbel.kernels.large_set.search.listed_tiles import list_tiles, load_listed
from tokendraw_triton_gumbel.kernels.large_set.search.value_edge import find_either_edge, missing_amount
from tokendraw_triton_gumbel.kernels.shared.comparisons import reaches
from tokendraw_triton_gumbel.kernels.shared.float_keys import INT32_MAX, LARGEST, LOWEST, key_of, value_of
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES, TILE_SIZE, lane_sums
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

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
    tl.debug_barrier()
    while start < count:
        x, tile, _ = load_listed(source, scratch.tiles, start, count, config)
        mask, hit_count, offset, max_count, total = find_hits(x, low, high, config.WARPS, config.VECTOR)
        offset += num_collected
        tile_base = source.base + (tile * TILE_SIZE)[None, :]
        i = 0
        while i < max_count:
            id_in_tile, mask = next_hit(mask, tl.arange(0, LANES)[:, None], config.VECTOR)
            is_hit = (hit_count > i) & (offset + i < MAX_COLLECTED)
            tl.store(
                scratch.logits + offset + i,
                tl.load(tile_base + id_in_tile, mask=is_hit).to(tl.float32),
                mask=is_hit,
            )
            i += 1
        num_collected += total
        start += config.WARPS
    tl.debug_barrier()
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
    source,
    maximum,
    tile,
    tiles,
    scratch,
    bracket,
    target,
    max_logit,
    scale,
    spread,
    by_mass,
    config: tl.constexpr,
):
    """Return the threshold of a row: the largest value from which upwards it weighs ``target``.

    :param maximum: [TILES] float32, -inf beyond the tiles; ``tile`` their numbers.
    :param bracket: :class:`SearchBracket`; the weight from its low end upwards is assumed to reach ``target``.
    :param max_logit: the largest value, finite.
    :param spread: positive distance from the largest value to some other value.
    """
    low, high, above, count_above, count_inside = (
        bracket.low,
        bracket.high,
        bracket.weight_above,
        bracket.count_above,
        bracket.count_inside,
    )
    count = list_tiles(maximum, tile, tiles, low, scratch.tiles)
    step = 0
    is_searching = True
    while is_searching:
        if count_inside <= MAX_COLLECTED:
            count_inside = collect(source, scratch, count, low, high, config)
        if count_inside <= MAX_COLLECTED:
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
