"""The floor of a row: the least value that its filters keep.

Reads 8 bytes a tile, and the tiles that may hold a kept token one to three times; see :mod:`.search` for rows of which
that is most of them. Writes only scratch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.search import (
    bound_by_tiles,
    key_of,
    list_tiles,
    load_tiles,
    mass_from,
    search,
    value_of,
    weigh,
)


@triton.jit
def min_p_floor(top, temperature, min_p):
    """The least float32 that min-p keeps; -inf if it is off."""
    exact = top.to(tl.float64) + temperature * tl.log(tl.minimum(tl.where(min_p > 0, min_p, 1.0), 1.0))
    rounded = exact.to(tl.float32)
    # x >= exact is the same as x >= the next float32 that is not below exact
    above = value_of(key_of(rounded) + 1)
    floor = tl.where((rounded.to(tl.float64) < exact) & (rounded > float("-inf")), above, rounded)
    return tl.where(min_p > 0, floor, float("-inf"))


@triton.jit
def bound_of(maximum, mass, top, scale, least, k, p, joint):
    """A value that no token is below on which the kept set depends, from the maxima of the tiles; -inf if there is none.

    :param least: the floor of min-p; k and p as :func:`~tokendraw_triton_gumbel.few.draw_few` takes them.
    """
    bound = least
    if k > 0:
        finite = tl.where(maximum > float("-inf"), 1.0, 0.0)
        bound = tl.maximum(bound, bound_by_tiles(maximum, finite, k.to(tl.float32)))
    # Beside another filter top-p needs the mass of all that the others leave, so they set the bound alone.
    alone = (k == 0).to(tl.int32) * (least == float("-inf")).to(tl.int32) + (joint != 0).to(tl.int32)
    if (p < 1).to(tl.int32) * alone > 0:
        target = (p * mass.to(tl.float64)).to(tl.float32)
        bound = tl.maximum(bound, bound_by_tiles(maximum, weigh(maximum, top, scale, True), target))
    return bound


@triton.jit
def floor_of(
    base,
    vocab_size,
    maximum,
    tile,
    tiles,
    mass,
    listed,
    values,
    top,
    scale,
    least,
    k,
    p,
    joint,
    CAPACITY: tl.constexpr,
):
    """The largest of the floors of min-p, top-k and top-p; -inf if none is on.

    :param maximum: [TILES] float32, the maxima of the tiles.
    :param least: the floor of min-p; k and p as :func:`~tokendraw_triton_gumbel.few.draw_few` takes them.
    :param mass: the sum of ``exp(y)`` over the row.
    :param top: the largest logit, finite.
    :param scale: ``log2(e) / T``.
    """
    floor = least
    lowest = tl.min(tl.where(maximum > float("-inf"), maximum, top), 0)
    spread = tl.where(top > lowest, top - lowest, tl.maximum(tl.abs(top) * 1e-6, 1e-6))
    if k > 0:
        target = k.to(tl.float32)
        low = bound_by_tiles(maximum, tl.where(maximum > float("-inf"), 1.0, 0.0), target)
        kth = search(
            base,
            vocab_size,
            maximum,
            tile,
            tiles,
            listed,
            values,
            low,
            target,
            top,
            scale,
            spread,
            BY_MASS=False,
            CAPACITY=CAPACITY,
        )
        floor = tl.maximum(floor, kth)
    if p < 1:
        counted = mass
        if (floor > float("-inf")).to(tl.int32) * (joint == 0).to(tl.int32) > 0:
            count = list_tiles(maximum, tile, tiles, floor, listed)
            counted = mass_from(base, vocab_size, listed, count, floor, top, scale)
        target = (p * counted.to(tl.float64)).to(tl.float32)
        low = tl.maximum(floor, bound_by_tiles(maximum, weigh(maximum, top, scale, True), target))
        nucleus = search(
            base,
            vocab_size,
            maximum,
            tile,
            tiles,
            listed,
            values,
            low,
            target,
            top,
            scale,
            spread,
            BY_MASS=True,
            CAPACITY=CAPACITY,
        )
        floor = tl.maximum(floor, nucleus)
    return tl.minimum(floor, top)


@triton.jit
def weigh_tiles(base, vocab_size, maximum, tile, tiles, listed, floor, top, scale, sums):
    """Overwrite ``sums`` [tiles] with the sum of ``exp(y)`` over the kept tokens of each tile."""
    tl.store(sums + tile, tl.zeros_like(maximum), mask=tile < tiles)
    count = list_tiles(maximum, tile, tiles, floor, listed)
    start = 0
    while start < count:
        x, number, inside = load_tiles(base, vocab_size, listed, start, count)
        total = tl.sum(tl.where(x >= floor, weigh(x, top, scale, True), 0.0), 1)
        tl.store(sums + number, total, mask=inside)
        start += 4
    tl.debug_barrier()
