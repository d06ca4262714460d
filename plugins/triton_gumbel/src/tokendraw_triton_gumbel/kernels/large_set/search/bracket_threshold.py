"""Finds the threshold of a row whose bracket holds few logits, by reading the few tiles with logits in the bracket.

Reads 8 bytes a tile that passes wrote, and at most 24 tiles of logits, twice; writes 4 bytes a tile. One program does
it. Separating the last few logits by passes would take several, if the drawn token is the last kept one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.large_set.columns import column_sum, load_column
from tokendraw_triton_gumbel.kernels.large_set.row_state import (
    COLUMNS,
    FIND_NUCLEUS,
    GOAL,
    KTH_INSIDE,
    MAX_COLLECTED,
    MAX_EXPECTED,
    MAX_LOGIT,
    SCALE,
    SLOT,
    TARGET_MAX,
    TARGET_MIN,
)
from tokendraw_triton_gumbel.kernels.large_set.search.listed_tiles import list_tiles, weigh_listed
from tokendraw_triton_gumbel.kernels.large_set.search.threshold_search import collect
from tokendraw_triton_gumbel.kernels.large_set.search.value_edge import find_either_edge, missing_amount
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_MAX_TILES = tl.constexpr(24)
MIN_PASSES = tl.constexpr(2)
"""Passes before that: each is read by many programs, and narrows a bracket to a tenth or less."""


@triton.jit
def _bracket_weights(columns, bracket, tiles, TILES: tl.constexpr):
    """Return (the weight of each tile from the low end of a bracket upwards; its weight in the bracket): [TILES].

    A tile without a logit in the bracket weighs the same from both ends upwards, bit for bit.
    """
    upper_weight = load_column(columns, bracket.low_column, tiles, TILES)
    return upper_weight, upper_weight - load_column(columns, bracket.high_column, tiles, TILES)


@triton.jit
def bracket_fits_capacity(columns, bracket, goal, num_passes, tiles, reals, ints, config: tl.constexpr):
    """Return whether few tiles hold the bracket of a nucleus and its logits fit the scratch, by the tiles' weights."""
    fits = (
        (goal == FIND_NUCLEUS).to(tl.int32)
        * (bracket.low_column >= 0).to(tl.int32)
        * (num_passes >= MIN_PASSES).to(tl.int32)
    )
    fits *= (bracket.high_column >= 0).to(tl.int32) * (tl.load(ints + KTH_INSIDE) <= 0).to(tl.int32)
    fits *= (tl.load(reals + TARGET_MIN) == tl.load(reals + TARGET_MAX)).to(tl.int32)
    if fits > 0:
        _, between = _bracket_weights(columns, bracket, tiles, config.TILES)
        lightest = weigh(bracket.low, tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE))
        fits = (tl.sum((between != 0).to(tl.int32), 0) <= _MAX_TILES).to(tl.int32)
        fits *= (tl.sum(between, 0) <= lightest * MAX_EXPECTED).to(tl.int32)
    return fits


@triton.jit(noinline=True)
def find_bracket_threshold(source, bracket, tiles, reals, ints, columns, scratch, config: tl.constexpr):
    """Return (the threshold; whether the bracket's logits fitted the scratch).

    Writes the weight of every tile from the threshold upwards into the first column of the row's free slot.

    :param source: the :class:`.RowAddress`; ``scratch`` the program's :class:`~.argument_groups.SearchScratch`.
    :param bracket: a :class:`~.bracket.Bracket` that :func:`bracket_fits_capacity` accepted.
    """
    TILES: tl.constexpr = config.TILES
    tile = tl.arange(0, TILES)
    low, high = bracket.low, bracket.high
    max_logit, scale = tl.load(reals + MAX_LOGIT), tl.load(reals + SCALE)
    upper_weight, between = _bracket_weights(columns, bracket, tiles, TILES)
    above = column_sum(columns, bracket.high_column, 0, tiles, TILES)
    count = list_tiles(tl.where(between != 0, 1.0, 0.0), tile, tiles, 1.0, scratch.tiles)
    num_inside = collect(source, scratch, count, low, high, config)
    by_mass = (tl.load(ints + GOAL) == FIND_NUCLEUS).to(tl.int32)
    target = tl.load(reals + TARGET_MAX)
    missing = missing_amount(target, above, by_mass)
    threshold = find_either_edge(
        scratch.logits, num_inside, low, missing, max_logit, scale, by_mass, config.ULP_STEP
    )
    weights = columns + tl.load(ints + SLOT).to(tl.int64) * tiles * COLUMNS
    tl.store(weights + tile * COLUMNS, upper_weight, mask=tile < tiles)
    tl.debug_barrier()
    weigh_listed(source, scratch.tiles, count, threshold, max_logit, scale, weights, config)
    return threshold, num_inside <= MAX_COLLECTED
