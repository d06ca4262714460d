"""Reads and writes single logits of a row as float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_logits(row, ids, mask):
    """Load logits as float32: bfloat16 by its bits, since Triton's interpreter converts subnormal numbers wrongly."""
    if row.base.dtype.element_ty == tl.bfloat16:
        words = row.base.to(tl.pointer_type(tl.int16), bitcast=True)
        bits = tl.load(words + ids, mask=mask, other=0).to(tl.int32) << 16
        value = bits.to(tl.float32, bitcast=True)
    else:
        value = tl.load(row.base + ids, mask=mask, other=0).to(tl.float32)
    return value


@triton.jit
def store_logits(row, ids, value, mask):
    """Round float32 to the dtype of the logits, ties to even, and store it; NaN is not stored.

    bfloat16 is rounded by its bits: Triton's interpreter truncates.
    """
    mask &= value == value
    if row.base.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(row.base.to(tl.pointer_type(tl.int16), bitcast=True) + ids, bits.to(tl.int16), mask=mask)
    else:
        tl.store(row.base + ids, value.to(row.base.dtype.element_ty), mask=mask)
