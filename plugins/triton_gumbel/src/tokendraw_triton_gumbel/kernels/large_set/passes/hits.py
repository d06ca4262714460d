"""The logits of a block that lie in a bracket: marked by bits, counted, and given places one behind the other.

A thread marks by bits which of its 32 logits of a tile are among them, and then writes them in a loop.
Few of them are, and a store for each would be most of the code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import count_bits, lowest_bit
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES


class Hits(NamedTuple):
    """The hits of a block, [LANES, SPAN] each but the last two."""

    mask: Any
    """Bits of those that are left."""
    number: Any
    """How many there were."""
    place: Any
    """The place of the first."""
    most: Any
    """The largest number that a thread has."""
    total: Any
    """How many there are in the block."""


@triton.jit
def hits_in(x, low, high, found, SPAN: tl.constexpr, VECTOR: tl.constexpr):
    """Return the :class:`Hits` in [low, high) of a block [LANES, SPAN, chunks, VECTOR], behind ``found`` others."""
    bit = tl.arange(0, LANES // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    hit = tl.where((x >= low) & (x < high), ((bit * 0 + 1) << bit)[None, None, :, :], 0)
    mask = tl.sum(tl.sum(hit, 3), 2)
    number = count_bits(mask)
    flat = tl.reshape(number, (LANES * SPAN,))
    place = tl.reshape(found + tl.cumsum(flat, 0) - flat, (LANES, SPAN))
    return Hits(mask, number, place, tl.max(flat, 0), tl.sum(flat, 0))


@triton.jit
def next_hit(mask, VECTOR: tl.constexpr):
    """Return (the id within its tile of the first hit that is left in each thread, the mask without it)."""
    at = lowest_bit(mask)
    lane = tl.arange(0, LANES)[:, None] * VECTOR
    return lane + at // VECTOR * (LANES * VECTOR) + at % VECTOR, mask & (mask - 1)
