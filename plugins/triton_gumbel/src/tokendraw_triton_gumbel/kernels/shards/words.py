"""Writes the fields of a rank's message as words of 4 bytes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_word(words, word, value):
    """Write a scalar into the word at index ``word``, or into two words if it has 8 bytes, the lower one first.

    :param words: of the row, int32.
    """
    if value.dtype.primitive_bitwidth == 64:
        bits = value.to(tl.int64, bitcast=True)
        tl.store(words + word, bits.to(tl.int32))
        tl.store(words + word + 1, (bits >> 32).to(tl.int32))
    else:
        tl.store(words + word, value.to(tl.int32, bitcast=True))
