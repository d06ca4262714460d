"""Reads numbers from words of 4 bytes, wherever these lie."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_words(words, sizes, rank, row):
    """Return where the words of a row of one rank begin, or of a block of ranks."""
    return words + (rank.to(tl.int64) * sizes.rows + row) * sizes.width


@triton.jit
def load_long(place, mask):
    """Load int64 from two words each, 0 where the mask is off."""
    low = tl.load(place, mask=mask, other=0).to(tl.uint32, bitcast=True)
    high = tl.load(place + 1, mask=mask, other=0)
    return (high.to(tl.int64) << 32) | low.to(tl.int64)


@triton.jit
def load_double(place, mask):
    """Load float64 from two words each."""
    return load_long(place, mask).to(tl.float64, bitcast=True)


@triton.jit
def load_float(place, mask):
    """Load float32, -inf where the mask is off."""
    found = tl.load(place, mask=mask, other=0).to(tl.float32, bitcast=True)
    return tl.where(mask, found, float("-inf"))


@triton.jit
def load_score(place, mask, FP64: tl.constexpr):
    """Load float64, or float32 as float64, -inf where the mask is off."""
    if FP64:
        found = load_double(place, mask)
    else:
        found = tl.load(place, mask=mask, other=0).to(tl.float32, bitcast=True).to(tl.float64)
    return tl.where(mask, found, float("-inf"))


@triton.jit
def distance(x, top, inverse):
    """Return ``(x - top) / T`` in float64, 0 where both are the same infinity.

    :param inverse: ``1 / T`` in float64, finite.
    """
    below = tl.where(x == top, 0.0, x).to(tl.float64) - tl.where(x == top, 0.0, top).to(tl.float64)
    return below * inverse
