"""Finds the least kept logit of a row from a bound: what a call reports as the row's threshold.

Reads 4 bytes a tile and one tile of logits, mostly. A row that keeps nearly all of its logits is read up to the first
tile with a dropped one; where the bound is no logit of the row, the entire row is read once more.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.tile_layout import TILE_SIZE

_AT_ONCE = tl.constexpr(4096)
"""Logits compared at once where the entire row is read: fewer would wait for the memory more often."""


@triton.jit
def _any_dropped(x, bound):
    return tl.max(((x > float("-inf")) & (x < bound)).to(tl.int32), 0)


@triton.jit(noinline=True)
def least_reaching(source, bound):
    """Return the least logit of a row from ``bound`` upwards that is above -inf; +inf without one. Reads the row."""
    lowest = tl.full((_AT_ONCE,), float("inf"), tl.float32)
    start = 0
    while start < source.vocab_size:
        i = start + tl.arange(0, _AT_ONCE)
        x = tl.load(source.base + i, mask=i < source.vocab_size, other=float("-inf")).to(tl.float32)
        lowest = tl.minimum(lowest, tl.where((x >= bound) & (x > float("-inf")), x, float("inf")))
        start += _AT_ONCE
    return tl.min(lowest, 0)


@triton.jit(noinline=True)
def least_kept(source, maxima, tiles, bound, is_value):
    """Return the least logit that reaches a bound, or -inf if every logit above -inf does.

    :param source: the :class:`.RowAddress`; ``maxima`` [tiles] float32 of the row, in memory.
    :param bound: reached by some logit, and above -inf.
    :param is_value: 1 if a logit of the row equals the bound, else 0.
    """
    least = bound
    if is_value == 0:
        least = least_reaching(source, bound)
    is_dropped = tl.full((), 0, tl.int32)
    tile = 0
    while (tile < tiles).to(tl.int32) * (1 - is_dropped) > 0:
        maximum = tl.load(maxima + tile)
        if maximum < bound:
            is_dropped = (maximum > float("-inf")).to(tl.int32)
        if maximum >= bound:
            i = tile * TILE_SIZE + tl.arange(0, TILE_SIZE)
            x = tl.load(source.base + i, mask=i < source.vocab_size, other=float("-inf")).to(tl.float32)
            is_dropped = _any_dropped(x, bound)
        tile += 1
    return tl.where(is_dropped > 0, least, float("-inf"))
