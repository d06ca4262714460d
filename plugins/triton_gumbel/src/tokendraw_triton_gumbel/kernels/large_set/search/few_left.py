"""The threshold of a row whose bracket holds few logits: they are read from the few tiles that hold some of them.

Reads 8 bytes a tile that the passes have left, and at most 24 tiles of logits, twice; writes 4 bytes a tile. One
program does it. To part the last few by more passes would take several, where the token that is drawn is the last that
is kept.
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
    SCALE,
    SLOT,
    TARGET_MAX,
    TARGET_MIN,
    TOP,
)
from tokendraw_triton_gumbel.kernels.large_set.search.listed_tiles import list_tiles, weigh_listed
from tokendraw_triton_gumbel.kernels.large_set.search.threshold_search import among, collect
from tokendraw_triton_gumbel.kernels.shared.weights import weigh

_MOST_TILES = tl.constexpr(24)
PASSES = tl.constexpr(2)
"""Passes before that: each is read by many programs, and narrows a bracket to a tenth or less."""


@triton.jit
def _weighs_between(columns, bracket, tiles, TILES: tl.constexpr):
    """Return (what tiles weigh from the low end of a bracket upwards; how much of it lies in the bracket): [TILES].

    A tile without a logit there weighs the same from both ends upwards, bit for bit.
    """
    most = load_column(columns, bracket.low_column, tiles, TILES)
    return most, most - load_column(columns, bracket.high_column, tiles, TILES)


@triton.jit
def few_are_left(columns, bracket, goal, number, tiles, reals, ints, config: tl.constexpr):
    """Return whether the bracket of a nucleus holds so few logits; ``number`` of passes came before."""
    few = (
        (goal == FIND_NUCLEUS).to(tl.int32)
        * (bracket.low_column >= 0).to(tl.int32)
        * (number >= PASSES).to(tl.int32)
    )
    few *= (bracket.high_column >= 0).to(tl.int32) * (tl.load(ints + KTH_INSIDE) <= 0).to(tl.int32)
    few *= (tl.load(reals + TARGET_MIN) == tl.load(reals + TARGET_MAX)).to(tl.int32)
    if few > 0:
        _, between = _weighs_between(columns, bracket, tiles, config.TILES)
        lightest = weigh(bracket.low, tl.load(reals + TOP), tl.load(reals + SCALE))
        few = (tl.sum((between != 0).to(tl.int32), 0) <= _MOST_TILES).to(tl.int32)
        few *= (tl.sum(between, 0) <= lightest * (config.CAPACITY // 2)).to(tl.int32)
    return few


@triton.jit(noinline=True)
def find_among_few(source, bracket, tiles, reals, ints, columns, scratch, config: tl.constexpr):
    """Return (the threshold; whether there was room for what the bracket holds).

    What every tile weighs from there upwards goes into the first column of the row's free slot.

    :param source: the :class:`~.row_values.Row`; ``scratch`` the program's :class:`~.argument_groups.SearchScratch`.
    :param bracket: :class:`~.bracket.Bracket`, of which :func:`few_are_left` says that it holds few logits.
    """
    TILES: tl.constexpr = config.TILES
    tile = tl.arange(0, TILES)
    low, high = bracket.low, bracket.high
    top, scale = tl.load(reals + TOP), tl.load(reals + SCALE)
    most, between = _weighs_between(columns, bracket, tiles, TILES)
    above = column_sum(columns, bracket.high_column, 0, tiles, TILES)
    count = list_tiles(tl.where(between != 0, 1.0, 0.0), tile, tiles, 1.0, scratch.tiles)
    inside = collect(source, scratch, count, low, high, config)
    by_mass = tl.load(ints + GOAL) == FIND_NUCLEUS
    target = tl.load(reals + TARGET_MAX)
    floor = among(scratch.logits, inside, low, high, above, target, top, scale, by_mass, config.CAPACITY)
    weights = columns + tl.load(ints + SLOT).to(tl.int64) * tiles * COLUMNS
    tl.store(weights + tile * COLUMNS, most, mask=tile < tiles)
    tl.debug_barrier()
    weigh_listed(source, scratch.tiles, count, floor, top, scale, weights, config)
    return floor, inside <= config.CAPACITY
