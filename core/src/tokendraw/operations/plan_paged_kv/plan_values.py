"""The values of a plan, computed on the host: the reference of the kit and of ``TOKENDRAW_DEBUG=1``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

from tokendraw.calls.output_checks import first_of
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
