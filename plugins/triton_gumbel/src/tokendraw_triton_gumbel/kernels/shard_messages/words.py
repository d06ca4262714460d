"""Reads numbers from words of 4 bytes at any alignment."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_words(words, sizes, rank, row):
    """Return pointers to the first word of a row, for one rank or a block of ranks."""
    return words + (rank.to(tl.int64) * sizes.rows + row) * sizes.width


@triton.jit
def load_long(pointers, mask):
    """Load int64 from two words each, 0 where the mask is off."""
    low = tl.load(pointers, mask=mask, other=0).to(tl.uint32, bitcast=True)
    high = tl.load(pointers + 1, mask=mask, other=0)
    return (high.to(tl.int64) << 32) | low.to(tl.int64)


@triton.jit
def load_double(pointers, mask):
    """Load float64 from two words each."""
    return load_long(pointers, mask).to(tl.float64, bitcast=True)


@triton.jit
def load_float(pointers, mask):
    """Load float32, -inf where the mask is off."""
    value = tl.load(pointers, mask=mask, other=0).to(tl.float32, bitcast=True)
    return tl.where(mask, value, float("-inf"))


@triton.jit
def load_score(pointers, mask, FP64: tl.constexpr):
    """Load float64, or float32 as float64, -inf where the mask is off."""
    if FP64:
        value = load_double(pointers, mask)
    else:
        value = tl.load(pointers, mask=mask, other=0).to(tl.float32, bitcast=True).to(tl.float64)
    return tl.where(mask, value, float("-inf"))


@triton.jit
def distance(x, max_logit, inverse):
    """Return ``(x - max_logit) / T`` in float64, 0 if x equals an infinite ``max_logit``.

    :param inverse: ``1 / T`` in float64, finite.
    """
    below = tl.where(x == max_logit, 0.0, x).to(tl.float64) - tl.where(x == max_logit, 0.0, max_logit).to(
        tl.float64
    )
    return below * inverse
