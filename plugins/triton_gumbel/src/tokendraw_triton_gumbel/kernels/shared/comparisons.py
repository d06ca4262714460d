"""Compares values with results 1.0 or 0.0 as factors, so that a sum over hits costs two instructions an element.

Reads and writes nothing. On NVIDIA one instruction compares and makes the factor; no expression of Triton compiles to
it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reaches(x, bound, IS_NVIDIA: tl.constexpr):
    """Return 1.0 where ``x`` is at least ``bound``, else 0.0, also of NaN."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "set.ge.f32.f32 $0, $1, $2;", "=f,f,f", [x, bound], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return (x >= bound).to(tl.float32)


@triton.jit
def exceeds(x, bound, IS_NVIDIA: tl.constexpr):
    """Return 1.0 where ``x`` is greater than ``bound``, else 0.0, also of NaN."""
    if IS_NVIDIA:
        return tl.inline_asm_elementwise(
            "set.gt.f32.f32 $0, $1, $2;", "=f,f,f", [x, bound], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return (x > bound).to(tl.float32)
