"""Marks the logits of a block in a bracket by bits, counts them, and numbers them one after the other.

Each thread marks the hits among its 32 logits of a tile by bits, and then writes them in a loop. Hits are few, and a
store for each logit would be most of the code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.bits import count_bits, lowest_bit
from tokendraw_triton_gumbel.kernels.shared.tile_layout import LANES


class Hits(NamedTuple):
    """Hits of a block: [LANES, SPAN], except for two scalars."""

    mask: Any
    """Bits of the remaining hits."""
    count: Any
    """Number of hits of the thread."""
    offset: Any
    """Index of the thread's first hit among those of the block."""
    max_count: Any
    """Largest number of hits of a thread."""
    total: Any
    """Number of hits in the block."""


@triton.jit
def bits_of_hits(x, low, high, VECTOR: tl.constexpr):
    """Mark the logits in [low, high) of a block [LANES, SPAN, chunks, VECTOR] by bits: [LANES, SPAN] int32."""
    bit = tl.arange(0, LANES // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    hit = tl.where((x >= low) & (x < high), ((bit * 0 + 1) << bit)[None, None, :, :], 0)
    return tl.sum(tl.sum(hit, 3), 2)


@triton.jit
def find_hits(x, low, high, SPAN: tl.constexpr, VECTOR: tl.constexpr):
    """Return the :class:`Hits` in [low, high) of a block [LANES, SPAN, chunks, VECTOR]."""
    mask = bits_of_hits(x, low, high, VECTOR)
    count = count_bits(mask)
    flat = tl.reshape(count, (LANES * SPAN,))
    offset = tl.reshape(tl.cumsum(flat, 0) - flat, (LANES, SPAN))
    return Hits(mask, count, offset, tl.max(flat, 0), tl.sum(flat, 0))


@triton.jit
def next_hit(mask, lane, VECTOR: tl.constexpr):
    """Return (the id within its tile of the first remaining hit of each thread, the mask without this hit).

    :param lane: the lane of each mask, from 0 to 31.
    """
    bit = lowest_bit(mask)
    return lane * VECTOR + bit // VECTOR * (LANES * VECTOR) + bit % VECTOR, mask & (mask - 1)
