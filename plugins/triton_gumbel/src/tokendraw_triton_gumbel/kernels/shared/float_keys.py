"""Maps float32 to int32 keys of the same order, for searches by halving. Reads and writes nothing."""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234663852886e38)
LARGEST = tl.constexpr(3.4028234663852886e38)
"""The ends of the finite float32."""
INT32_MAX = tl.constexpr(2147483647)
"""Stands for no id, above all ids; and as a mask takes the sign off a key."""


@triton.jit
def key_of(x):
    """Map float32 to int32 in the same order; both zeros map to 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & INT32_MAX)


@triton.jit
def value_of(key):
    """Map a key back to float32."""
    return (key ^ ((key >> 31) & INT32_MAX)).to(tl.float32, bitcast=True)
