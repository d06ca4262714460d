"""The layout of the work queue's counters for large sets: launch 1 clears them, launches 2 and 3 use them."""

from __future__ import annotations

import triton.language as tl

QUEUE_COUNTERS = tl.constexpr(128)
"""Int32 counters; the first says how many rows launch 2 has left to launch 3."""
TICKETS = tl.constexpr(32)
DONE = tl.constexpr(64)
LATER = tl.constexpr(96)
"""More counters: tickets drawn, rows drawn, passes announced after the first of each row. Each has a cache line of its
own, since programs wait for one counter while another changes."""
ROUNDS = tl.constexpr(6)
"""Limit of passes of a row, before one program finds its threshold."""
