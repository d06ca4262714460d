"""Writes what a rank says of a row into words of 4 bytes, as they are sent."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def put(words, place, value):
    """Write a scalar into the word at ``place``, or into two of them if it has 8 bytes, the lower one first.

    :param words: of the row, int32.
    """
    if value.dtype.primitive_bitwidth == 64:
        bits = value.to(tl.int64, bitcast=True)
        tl.store(words + place, bits.to(tl.int32))
        tl.store(words + place + 1, (bits >> 32).to(tl.int32))
    else:
        tl.store(words + place, value.to(tl.int32, bitcast=True))
