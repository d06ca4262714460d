"""Launch K: the page plan of a batch, by programs of which none waits for another.

Each program reads all lengths, so that it knows how many pages stand before those of its own requests, and how many
there are. A request has as many words in the list of pages as it has entries in the block table: those that its pages
do not take stand behind the last page of all, in the order of the requests, and the request's program pads them.

Reads every length once a program and every entry of the table in use once; writes every word of the plan once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _full_pages(length, page_size):
    """Return the pages in front of the page of the last token."""
    return (tl.maximum(length, 1) - 1) // page_size


@triton.jit
def _num_pages(length, page_size, width):
    """Return the pages that a length takes: none below 1, at most ``width``. No step of it exceeds an int32."""
    return tl.where(length > 0, tl.minimum(_full_pages(length, page_size), width - 1) + 1, 0)


@triton.jit
def _last_page_len(length, page_size, width):
    """Return the tokens in the last page of a length, which is full where the table ends before the length."""
    full = _full_pages(length, page_size)
    tokens = tl.where(full < width, length - full * page_size, page_size)
    return tl.where((length > 0) & (width > 0), tokens, 0)


@triton.jit
def _pages_before(request, seq_lens, requests, page_size, width, AT_ONCE: tl.constexpr):
    """Return how many pages all requests before one take, and how many all requests take."""
    before = tl.zeros([AT_ONCE], tl.int32)
    total = tl.zeros([AT_ONCE], tl.int32)
    for start in range(0, requests, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        length = tl.load(seq_lens + at, mask=at < requests, other=0)
        pages = _num_pages(length, page_size, width)
        total += pages
        before += tl.where(at < request, pages, 0)
    return tl.sum(before, 0), tl.sum(total, 0)


@triton.jit
def _write_pages(request, is_one, end, pages, total, pad, table, page_indices, COLUMNS: tl.constexpr):
    """Write the pages of some requests [n], and what pads theirs: columns by turns with the programs beside this one.

    :param end: pages of all requests up to each of them.
    """
    row = request.to(tl.int64)
    entries = table.base + row * table.row_stride
    own = (end - pages).to(tl.int64)
    # Of column 0, counted back from column ``pages``, where the padding starts.
    behind = row * table.width + (total - end).to(tl.int64)
    for start in range(tl.program_id(1) * COLUMNS, table.width, tl.num_programs(1) * COLUMNS):
        column = (start + tl.arange(0, COLUMNS))[None, :]
        is_used = column < pages[:, None]
        page = tl.load(entries[:, None] + column, mask=is_used, other=pad)
        place = tl.where(is_used, own[:, None], behind[:, None]) + column
        tl.store(page_indices + place, page, mask=is_one[:, None] & (column < table.width))


@triton.jit(
    do_not_specialize=["table", "requests", "page_size", "pad"],
    do_not_specialize_on_alignment=["seq_lens", "table", "plan"],  # read and written one by one
)
def write_plan(seq_lens, table, plan, requests, page_size, pad, config: tl.constexpr):
    """One program plans ``REQUESTS`` requests. Grid (groups of requests, programs that share their columns).

    :param seq_lens: [requests] int32, any values.
    :param table: :class:`~.argument_groups.BlockTable`.
    :param plan: :class:`~.argument_groups.PagePlan`; without ``page_indices`` the table is not read.
    """
    REQUESTS: tl.constexpr = config.REQUESTS
    first = tl.program_id(0) * REQUESTS
    before, total = _pages_before(first, seq_lens, requests, page_size, table.width, config.AT_ONCE)
    request = first + tl.arange(0, REQUESTS)
    is_one = request < requests
    length = tl.load(seq_lens + request, mask=is_one, other=0)
    pages = _num_pages(length, page_size, table.width)
    end = before + tl.cumsum(pages, 0)
    if tl.program_id(1) == 0:
        if first == 0:
            tl.store(plan.page_indptr, 0)
        tl.store(plan.page_indptr + 1 + request, end, mask=is_one)
        tl.store(plan.last_page_len + request, _last_page_len(length, page_size, table.width), mask=is_one)
    if plan.page_indices is not None:
        _write_pages(request, is_one, end, pages, total, pad, table, plan.page_indices, config.COLUMNS)
