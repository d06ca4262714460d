"""Bits of int32: marks of the hits among a thread's elements, and words of two bfloat16. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

_UPPER_HALF = tl.constexpr(-65536)
"""The upper 16 bits of 32: a bfloat16 as float32."""


@triton.jit
def lowest_bit(mask):
    """Return the index of the lowest set bit: the exponent of a power of two."""
    return (((mask & -mask).to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127


@triton.jit
def count_bits(mask):
    """Return how many bits are set."""
    mask -= (mask >> 1) & 0x55555555
    mask = (mask & 0x33333333) + ((mask >> 2) & 0x33333333)
    mask = (mask + (mask >> 4)) & 0x0F0F0F0F
    mask += mask >> 8
    return (mask + (mask >> 16)) & 63


@triton.jit
def halves(pairs):
    """Return two bfloat16 in an int32 as float32."""
    return (pairs << 16).to(tl.float32, bitcast=True), (pairs & _UPPER_HALF).to(tl.float32, bitcast=True)
