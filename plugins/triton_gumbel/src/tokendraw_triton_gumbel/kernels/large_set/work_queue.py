"""Distributes work among programs by tickets: one for each part of a pass, once the pass is announced.

A program waits only for running programs, so the launch ends even if the device cannot hold all programs at once.
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


@triton.jit(noinline=True)
def announce_pass(queue, row, rows):
    """Announce another pass of a row after all its writes; the queue begins with ``rows`` first passes."""
    tl.store(queue.arrivals + row, 0)
    tl.debug_barrier()
    index = rows + tl.atomic_add(queue.counters + LATER, 1, sem="relaxed")
    tl.atomic_xchg(queue.announced + index, row + 1, sem="release")


@triton.jit
def arrive(queue, row, parts):
    """Count an ended part of the row's current pass; return 1 to the program that ended the last part, else 0."""
    tl.debug_barrier()
    return (tl.atomic_add(queue.arrivals + row, 1, sem="acq_rel") == parts - 1).to(tl.int32)


@triton.jit
def finish_row(queue):
    """Count a finished row, after all writes of its results."""
    tl.debug_barrier()
    tl.atomic_add(queue.counters + DONE, 1, sem="release")


@triton.jit
def await_pass(queue, index, rows, max_passes, IS_NVIDIA: tl.constexpr):
    """Wait until a pass is announced; return 1 more than its row, or 0 if no pass will follow.

    A row is done only after all parts of its passes, so every thread gets the same answer.
    """
    row_plus_one = tl.where(index < max_passes, -1, 0)
    while row_plus_one < 0:
        row = tl.load(queue.announced + index, volatile=True)
        if row > 0:
            row_plus_one = row
        elif tl.load(queue.counters + DONE, volatile=True) >= rows:
            row_plus_one = tl.full((), 0, tl.int32)
        elif IS_NVIDIA:
            _pause()
    if row_plus_one > 0:
        # Acquires all earlier writes. The result is used, since the compiler drops an unused one.
        row_plus_one = tl.atomic_add(queue.announced + index, 0, sem="acquire")
    return row_plus_one


@triton.jit
def _pause():
    tl.inline_asm_elementwise(
        "nanosleep.u32 200; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
