"""Launch P, ahead of a verification by probabilities: whether the drafts' probabilities are any. One read of them."""

from __future__ import annotations

import triton
import triton.language as tl

PROBS_AT_ONCE = 4096
"""Probabilities that a program looks at."""
SOME = tl.constexpr(1)
"""Findings about a row that is fine: a positive probability, and none that is bad."""
_BAD = tl.constexpr(2)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit(do_not_specialize=["requests"])
def check_probs(probs, row_stride, vocab_size, counters, requests, AT_ONCE: tl.constexpr):
    """One program checks some probabilities of one row. Grid (rows, stretches of ``AT_ONCE``).

    :param probs: [rows, vocab_size].
    :param counters: behind the first ``requests``, [rows] int32: that one is positive, or that one is no finite number
        from 0 upwards, is added.
    """
    row = tl.program_id(0)
    at = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    x = tl.load(probs + row.to(tl.int64) * row_stride + at, mask=at < vocab_size, other=0.0)
    fine = (x >= 0) & (x < float("inf"))
    found = tl.where(fine, tl.where(x > 0, SOME, 0), _BAD).to(tl.int32)
    tl.atomic_or(counters + requests + row, tl.reduce(found, 0, _either), sem="relaxed")
