"""Checks the values of plans for every batch, and memory outside the plan."""

from __future__ import annotations

import torch

from tokendraw.paged_kv import PagedKVPlan
from tokendraw_testing.kit.inputs import require_unmodified
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.threads import (
    LARGE_BATCH_ROWS,
    RepeatedCall,
    require_cpu_threads,
    require_thread_free,
    thread_words,
)
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.plan_paged_kv.subject import INT32_RANGE, SENTINEL, PlanSubject, fill_with_sentinels

properties = Properties("plan_paged_kv")

_WIDTHS = (1, 2, 5, 33, 64)
_PAGE_SIZES = (1, 3, 16, 128)
_CLAMPED_LENGTHS = [-1, 5, -16, INT32_RANGE[0], 65, 80, INT32_RANGE[1], INT32_RANGE[1] - 15]
"""Lengths below 0, which count as 0, and beyond the block table, which count as a full row."""
_LARGE_PAGE_SIZES = (2**29 + 1, 2**30, 2**30 + 1, INT32_RANGE[1] - 1, INT32_RANGE[1])
_LARGE_LENGTHS = [INT32_RANGE[1], INT32_RANGE[1] - 1, 2**30, 1, 0]


@properties.required("plan values")
def values(subject: PlanSubject, trial: Trial) -> str:
    """Offsets, last pages and pages are those of the lengths, out of range too, with any padding, and without pages."""
    num_batches = 0
    for i, requests in enumerate(subject.effort.batch_sizes):
        columns = _WIDTHS[i % len(_WIDTHS)]
        page_size = _PAGE_SIZES[i % len(_PAGE_SIZES)]
        rng = trial.generator(f"{requests} requests")
        lengths = subject.lengths(rng, requests, columns, page_size)
        subject.plan(lengths, subject.table(rng, requests, columns), page_size)
        num_batches += 1
    rng = trial.generator("edges")
    for lengths, columns in (([3, 0], 0), ([0, 0, 7, 0, 0, 33, 0], 4), ([0, 1, 15, 16], 1)):
        subject.plan(lengths, subject.table(rng, len(lengths), columns), 16)
    for page_size in (1, 2, 16):
        lengths = [max(page_size * pages + distance, 0) for pages in range(4) for distance in (-1, 0, 1)]
        subject.plan(lengths, subject.table(rng, len(lengths), 4), page_size)
    table = subject.table(rng, 8, 4)
    subject.plan(_CLAMPED_LENGTHS, table, 16, page_indices=False)
    for pad in (-1, 0, 7, *INT32_RANGE):
        subject.plan(_CLAMPED_LENGTHS, table, 16, pad=pad)
    for page_size in _LARGE_PAGE_SIZES:
        subject.plan(_LARGE_LENGTHS, table[:5, :3], page_size)
    return f"{num_batches + 12 + len(_LARGE_PAGE_SIZES)} batches"


@properties.required("plan buffers")
def buffers(subject: PlanSubject, trial: Trial) -> str:
    """Every element of the buffers is written at every call, and nothing beside them."""
    rng, requests, columns = trial.generator("batches"), 5, 4
    sizes = {"page_indptr": requests + 1, "last_page_len": requests, "page_indices": requests * columns}
    memory = subject.ints([SENTINEL] * 128)
    starts = {"page_indptr": 32, "last_page_len": 48, "page_indices": 64}
    out = PagedKVPlan(**{name: memory[start : start + sizes[name]] for name, start in starts.items()})
    is_outside = torch.ones(len(memory), dtype=torch.bool)
    for name, start in starts.items():
        is_outside[start : start + sizes[name]] = False
    steps = ([64] * 5, [17, 0, 48, 1, 16], [0, 0, 0, 0, 1], [0] * 5)
    for lengths in steps:
        fill_with_sentinels(out)
        subject.plan(lengths, subject.table(rng, requests, columns), 16, out=out)
        trial.require(
            bool((memory.cpu()[is_outside] == SENTINEL).all()),
            "memory beside the buffers needs to stay as it is, found changed",
        )
    return f"{len(steps)} calls into one plan"


@properties.required("plan threads")
def threads(subject: PlanSubject, trial: Trial) -> str:
    """Plans of large batches are those of their lengths with several threads, and in two at once."""
    require_cpu_threads(subject, trial)
    rng, requests, columns, page_size = trial.generator("batch"), 4 * LARGE_BATCH_ROWS, 64, 16
    lengths = subject.ints(subject.lengths(rng, requests, columns, page_size))
    table = subject.table(rng, requests, columns)

    def repeated(lengths: torch.Tensor, table: torch.Tensor) -> RepeatedCall:
        # Every value of every plan is compared with its lengths as it is made.
        return RepeatedCall(
            lambda: subject.new_call(
                "plan", lengths, table, page_size, True, -1, subject.buffers(requests, columns)
            ),
            lambda reference, plan: None,
        )

    calls = [repeated(lengths, table), repeated(lengths.flip(0), table.flip(0))]
    require_thread_free(subject, trial, f"{requests} requests", calls)
    return f"{requests} requests, {thread_words()}"


@properties.required("plan inputs unmodified")
def inputs_unmodified(subject: PlanSubject, trial: Trial) -> str:
    """Lengths and block table keep every bit, also lengths that are out of range."""
    seq_lens = subject.ints([-5, 17, INT32_RANGE[1]])
    table = subject.table(trial.generator("table"), 3, 4)
    with require_unmodified(trial, seq_lens=seq_lens, block_table=table):
        subject.plan(seq_lens, table, 16)
    return "3 requests"


@properties.required("plan strided tables")
def strided_tables(subject: PlanSubject, trial: Trial) -> str:
    """A block table may be columns or every second row of a wider table, or one row for all requests."""
    buffer = subject.table(trial.generator("table"), 12, 9)
    views = (buffer[:6, :4], buffer[::2, 2:7], buffer[6:, 8:], buffer[3:4, :5].expand(6, 5))
    for table in views:
        subject.plan([5, 0, 16, 17, 1, 64], table, 16)
    return f"{len(views)} views"
