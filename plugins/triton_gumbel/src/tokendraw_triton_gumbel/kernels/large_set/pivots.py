"""Stores the four values above which a pass over a row weighs its tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.float_keys import LARGEST, LOWEST


class PerPivot(NamedTuple):
    """A value for each of the four pivots of a pass; the pivots themselves descend."""

    p0: Any
    p1: Any
    p2: Any
    p3: Any


@triton.jit
def load_pivots(reals):
    """Return the pivots of the current pass."""
    return PerPivot(tl.load(reals), tl.load(reals + 1), tl.load(reals + 2), tl.load(reals + 3))


@triton.jit
def _as_pivot(pivot, low, max_logit, ULP_STEP: tl.constexpr):
    pivot = tl.minimum(tl.maximum(pivot, LOWEST), LARGEST)
    if ULP_STEP > 1:
        pivot = pivot.to(tl.bfloat16).to(tl.float32)  # and perhaps out of the bracket
    return tl.minimum(tl.maximum(pivot, low), tl.maximum(max_logit, low))


@triton.jit
def write_pivots(reals, pivots, low, max_logit, ULP_STEP: tl.constexpr):
    """Write four pivots for a pass: clamped to [low, max_logit], and rounded to bfloat16 where the logits are."""
    tl.store(reals, _as_pivot(pivots.p0, low, max_logit, ULP_STEP))
    tl.store(reals + 1, _as_pivot(pivots.p1, low, max_logit, ULP_STEP))
    tl.store(reals + 2, _as_pivot(pivots.p2, low, max_logit, ULP_STEP))
    tl.store(reals + 3, _as_pivot(pivots.p3, low, max_logit, ULP_STEP))
