"""Proves a planner by a known plan, and computes the values of any plan on the host."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

from tokendraw.calls.output_checks import first_of
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.plan_paged_kv.backend import PagedKVPlannerBackend
from tokendraw.paged_kv import PagedKVPlan


def wrong_plan(
    output: PagedKVPlan, seq_lens: Tensor, block_table: Tensor, page_size: int, pad: int
) -> str | None:
    """Word the first wrong value of a plan of the right form, needed against found; None for a correct plan.

    Waits for the device.
    """
    needed = _plan_on_the_host(seq_lens, block_table, page_size, pad)
    for name, values in needed.items():
        buffer = getattr(output, name)
        if buffer is None:
            continue
        found = buffer.cpu()
        for (i,) in first_of(found != values):
            return f"{name}[{i}] {int(values[i])}, found {int(found[i])}"
    return None


def _plan_on_the_host(seq_lens: Tensor, block_table: Tensor, page_size: int, pad: int) -> dict[str, Tensor]:
    """Compute each field of a plan, in int64."""
    table = block_table.cpu()
    columns = table.shape[1]
    lengths = seq_lens.cpu().to(torch.int64).clamp_(0, columns * page_size)
    pages = (lengths + page_size - 1) // page_size
    taken = table[torch.arange(columns) < pages.unsqueeze(1)]
    return {
        "page_indptr": padded(pages.cumsum(0), (1, 0)),
        "last_page_len": torch.where(lengths > 0, (lengths - 1) % page_size + 1, 0),
        "page_indices": padded(taken, (0, table.numel() - len(taken)), value=pad),
    }


def prove(backend: PagedKVPlannerBackend, device: torch.device) -> None:
    """Plan three requests of 5, 0 and 8 tokens with pages of 4 tokens.

    :raises PluginError: the plan is not what it has to be.
    """
    seq_lens = torch.tensor([5, 0, 8], dtype=torch.int32, device=device)
    block_table = torch.arange(10, 19, dtype=torch.int32, device=device).view(3, 3)
    out = PagedKVPlan.empty(3, 3, device=device)
    backend.plan(seq_lens, block_table, 4, True, -1, out)
    assert out.page_indices is not None
    found = (out.page_indptr.tolist(), out.last_page_len.tolist(), out.page_indices.tolist())
    needed = ([0, 2, 2, 4], [1, 0, 4], [10, 11, 16, 17, -1, -1, -1, -1, -1])
    if found != needed:
        raise PluginError(
            f"the proof call needs page_indptr {needed[0]}, last_page_len {needed[1]} and page_indices {needed[2]}, "
            f"found {found[0]}, {found[1]} and {found[2]}"
        )
