"""Writes the page plan of a batch, by programs that never wait for each other.

Each program reads all lengths, and so computes the number of pages before its own requests, and the total. A request
has as many words in the list of pages as entries in the block table: the words beyond its pages lie behind the last
page of all, in the order of the requests, and the request's program pads them.

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
    """Return the number of pages of a length: 0 below 1, at most ``width``. No intermediate exceeds an int32."""
    return tl.where(length > 0, tl.minimum(_full_pages(length, page_size), width - 1) + 1, 0)


@triton.jit
def _last_page_len(length, page_size, width):
    """Return the number of tokens in the last page of a length: a full page if the table ends before the length."""
    full = _full_pages(length, page_size)
    tokens = tl.where(full < width, length - full * page_size, page_size)
    return tl.where((length > 0) & (width > 0), tokens, 0)


@triton.jit
def _pages_before(request, seq_lens, requests, page_size, width, AT_ONCE: tl.constexpr):
    """Return the number of pages of all requests before ``request``, and of all requests."""
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
    """Write the pages of some requests [n], and their padding: columns in turns with the programs of the same requests.

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
        offset = tl.where(is_used, own[:, None], behind[:, None]) + column
        tl.store(page_indices + offset, page, mask=is_one[:, None] & (column < table.width))


@triton.jit(
    do_not_specialize=["table", "requests", "page_size", "pad"],
    do_not_specialize_on_alignment=["seq_lens", "table", "plan"],  # scalar reads and writes
)
def write_plan(seq_lens, table, plan, requests, page_size, pad, config: tl.constexpr):
    """Each program plans ``REQUESTS`` requests. Grid (groups of requests, programs that share their columns).

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
