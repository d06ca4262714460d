"""Proves a planner by a known plan."""

from __future__ import annotations

import torch

from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.plan_paged_kv.backend import PagedKVPlannerBackend
from tokendraw.paged_kv import PagedKVPlan


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
