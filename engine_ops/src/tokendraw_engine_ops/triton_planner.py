"""Plans the pages of a batch by one Triton kernel, whose programs never wait for each other.

Each program reads all lengths, and so computes the number of pages before its own requests, and the total. A request
has as many words in the list of pages as entries in the block table: the words beyond its pages lie behind the last
page of all, in the order of the requests, and the request's program pads them.

Reads every length once a program and every entry of the table in use once; writes every word of the plan once.
"""

from __future__ import annotations

import itertools
import os

import torch
import triton
import triton.language as tl

# Each program reads all lengths, so there are few: it takes several requests of a large batch, and a multiprocessor has
# at most four that columns are divided among.
_LARGE_BATCH_REQUESTS, _PROGRAMS = 1024, 4
SMALL, LARGE = (1, 512, 256), (8, 1024, 128)
"""How programs divide a plan: requests a program, lengths read at once, entries of a request copied at once."""


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


@triton.jit(
    do_not_specialize=["row_stride", "width", "requests", "page_size", "pad"],
    do_not_specialize_on_alignment=["seq_lens", "table", "page_indptr", "last_page_len", "page_indices"],
)
def write_plan(
    seq_lens, table, row_stride, width, page_indptr, last_page_len, page_indices, requests, page_size, pad,
    REQUESTS: tl.constexpr, AT_ONCE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each program plans ``REQUESTS`` requests. Grid (groups of requests, programs that share their columns).

    :param table: [requests, ``width``] int32, the elements of a row contiguous; not read without ``page_indices``.
    """
    first = tl.program_id(0) * REQUESTS
    before, total = _pages_before(first, seq_lens, requests, page_size, width, AT_ONCE)
    request = first + tl.arange(0, REQUESTS)
    is_one = request < requests
    length = tl.load(seq_lens + request, mask=is_one, other=0)
    pages = _num_pages(length, page_size, width)
    end = before + tl.cumsum(pages, 0)
    if tl.program_id(1) == 0:
        if first == 0:
            tl.store(page_indptr, 0)
        tl.store(page_indptr + 1 + request, end, mask=is_one)
        tl.store(last_page_len + request, _last_page_len(length, page_size, width), mask=is_one)
    if page_indices is not None:
        row = request.to(tl.int64)
        entries = table + row * row_stride
        own = (end - pages).to(tl.int64)
        # Of column 0, counted back from column ``pages``, where the padding starts.
        behind = row * width + (total - end).to(tl.int64)
        for start in range(tl.program_id(1) * COLUMNS, width, tl.num_programs(1) * COLUMNS):
            column = (start + tl.arange(0, COLUMNS))[None, :]
            is_used = column < pages[:, None]
            page = tl.load(entries[:, None] + column, mask=is_used, other=pad)
            offset = tl.where(is_used, own[:, None], behind[:, None]) + column
            tl.store(page_indices + offset, page, mask=is_one[:, None] & (column < width))


class TritonPlanner:
    """Plans pages in one launch; its kernels are compiled when it is built."""

    def __init__(self, device: torch.device) -> None:
        self._max_programs, self._compiled = _PROGRAMS, {}
        if device.type == "cuda":
            self._max_programs *= torch.cuda.get_device_properties(device).multi_processor_count
        if os.environ.get("TRITON_INTERPRET") == "1":
            return
        # Numbers are multiples of nothing, strides have 64 bits.
        i32, number, stride = torch.int32, 3, (1 << 32) + 3
        with torch.cuda.device(device):
            for division, pages in itertools.product((SMALL, LARGE), (i32, None)):
                arguments = (i32, i32, stride, number, i32, i32, pages, number, number, number, *division)
                # Found once: at each launch Triton would inspect the arguments to find the kernel.
                self._compiled[division, pages is not None] = write_plan.warmup(*arguments, grid=(1, 1, 1))

    def plan(self, seq_lens, block_table, page_size, page_indices, pad, out):
        if seq_lens.is_cuda and seq_lens.get_device() != torch.cuda.current_device():
            with torch.cuda.device(seq_lens.get_device()):
                return self.plan(seq_lens, block_table, page_size, page_indices, pad, out)
        requests, width = block_table.shape
        division = SMALL if requests < _LARGE_BATCH_REQUESTS else LARGE
        programs = max(1, -(-requests // division[0]))  # without requests, one writes the 0
        shared = min(-(-width // division[2]), self._max_programs // programs) if page_indices else 1
        tensors = (seq_lens, block_table, out.page_indptr, out.last_page_len, out.page_indices)
        kernel = self._compiled.get((division, page_indices), write_plan)
        if kernel is not write_plan:
            tensors = [tensor if tensor is None else tensor.data_ptr() for tensor in tensors]
        lengths, table, *buffers = tensors
        numbers = (requests, page_size, pad, *division)
        kernel[programs, max(1, shared), 1](lengths, table, block_table.stride(0), width, *buffers, *numbers)
        return out
