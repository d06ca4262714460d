"""Distributes work among programs: a ticket is a part of a pass, and a pass is announced once it can begin.

A program waits only for programs that run already, so the launch ends whether or not all of them fit the device at
once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokendraw_triton_gumbel.kernels.shared.queue_layout import DONE, LATER, TICKETS


@triton.jit
def draw_ticket(queue):
    """Return the next ticket."""
    return tl.atomic_add(queue.counters + TICKETS, 1, sem="relaxed")


@triton.jit
def announce_row(queue, row):
    """Announce the first pass of a row."""
    tl.store(queue.announced + tl.atomic_add(queue.counters, 1), row + 1)


@triton.jit
def announce_pass(queue, row, rows):
    """Announce another pass of a row, with all that was written before; ``rows`` first passes come before those."""
    tl.store(queue.arrivals + row, 0)
    tl.debug_barrier()
    index = rows + tl.atomic_add(queue.counters + LATER, 1, sem="relaxed")
    tl.atomic_xchg(queue.announced + index, row + 1, sem="release")


@triton.jit
def arrive(queue, row, parts):
    """Return 1 to the program that ends the last part of the current pass of a row, else 0."""
    tl.debug_barrier()
    return (tl.atomic_add(queue.arrivals + row, 1, sem="acq_rel") == parts - 1).to(tl.int32)


@triton.jit
def finish_row(queue):
    """Count a row that is drawn, after all that was written of it."""
    tl.debug_barrier()
    tl.atomic_add(queue.counters + DONE, 1, sem="release")


@triton.jit
def await_pass(queue, index, rows, most, IS_NVIDIA: tl.constexpr):
    """Wait until a pass is announced; return 1 more than its row, or 0 if none will be.

    A row is not done before all parts of its passes are, so that every thread comes to the same answer.
    """
    found = tl.where(index < most, -1, 0)
    while found < 0:
        row = tl.load(queue.announced + index, volatile=True)
        if row > 0:
            found = row
        elif tl.load(queue.counters + DONE, volatile=True) >= rows:
            found = tl.full((), 0, tl.int32)
        elif IS_NVIDIA:
            _pause()
    if found > 0:
        # And with it all that was written before. Its result is used, or the compiler would drop it.
        found = tl.atomic_add(queue.announced + index, 0, sem="acquire")
    return found


@triton.jit
def _pause():
    tl.inline_asm_elementwise(
        "nanosleep.u32 200; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
