"""Ahead of a verification by probabilities: whether the drafts' probabilities are any. One read of them."""

from __future__ import annotations

import triton
import triton.language as tl

PROBS_AT_ONCE = 4096
"""Probabilities a program."""
POSITIVE = tl.constexpr(1)
"""Result for a valid row: a positive probability, and no invalid one."""
_INVALID = tl.constexpr(2)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit(do_not_specialize=["requests"])
def check_probs(probs, row_stride, vocab_size, counters, requests, AT_ONCE: tl.constexpr):
    """Each program checks some probabilities of one row. Grid (rows, stretches of ``AT_ONCE``).

    :param probs: [rows, vocab_size].
    :param counters: behind the first ``requests``, [rows] int32: bits are added for a positive probability, and for a
        value that is negative or not finite.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    x = tl.load(probs + row.to(tl.int64) * row_stride + column, mask=column < vocab_size, other=0.0)
    is_valid = (x >= 0) & (x < float("inf"))
    prob_flags = tl.where(is_valid, tl.where(x > 0, POSITIVE, 0), _INVALID).to(tl.int32)
    tl.atomic_or(counters + requests + row, tl.reduce(prob_flags, 0, _either), sem="relaxed")
