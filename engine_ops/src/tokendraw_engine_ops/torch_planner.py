"""Plans pages by about a dozen operations of torch, without a wait for the device."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from tokendraw.plugin import one_thread
from tokendraw_engine_ops.paged_kv import LARGEST, PagedKVPlan


class TorchPlanner:
    """Plans the pages of a batch on the device of its lengths."""

    @torch.inference_mode()  # in which buffers may be written to that were made in it
    def plan(
        self,
        seq_lens: Tensor,
        block_table: Tensor,
        page_size: int,
        page_indices: bool,
        pad: int,
        out: PagedKVPlan,
    ) -> PagedKVPlan:
        # On a busy machine a second thread costs more than it gains.
        with one_thread() if seq_lens.is_cpu else contextlib.nullcontext():
            _count_pages(seq_lens, block_table.shape[1], page_size, out)
            if out.page_indices is not None and block_table.numel():
                _gather_pages(block_table, out.page_indptr, pad, out.page_indices)
        return out


def _count_pages(seq_lens: Tensor, columns: int, page_size: int, out: PagedKVPlan) -> None:
    lengths = seq_lens.clamp(0, min(columns * page_size, LARGEST))
    before_last = (lengths - 1).div_(page_size, rounding_mode="floor")  # pages; -1 without a token
    out.page_indptr[:1].zero_()
    torch.cumsum(before_last + 1, 0, dtype=torch.int32, out=out.page_indptr[1:])
    torch.sub(lengths, before_last.clamp_(min=0), alpha=page_size, out=out.last_page_len)


def _gather_pages(block_table: Tensor, page_indptr: Tensor, pad: int, page_indices: Tensor) -> None:
    requests, columns = block_table.shape
    slots = torch.arange(requests * columns, dtype=torch.int32, device=page_indptr.device)
    # A slot behind the last page reads some page of the last request, and is padded afterwards.
    request = torch.searchsorted(page_indptr[1:], slots, right=True).clamp_(max=requests - 1)
    column = (slots - page_indptr.index_select(0, request)).clamp_(max=columns - 1)
    torch.take(block_table, torch.add(column, request, alpha=columns), out=page_indices)
    page_indices.masked_fill_(slots >= page_indptr[requests:], pad)
