"""Page plans: the object that ``tokendraw.load("plan_paged_kv")`` returns, and the proof of a planner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.provider import Provider
from tokendraw.errors.exceptions import PluginError
from tokendraw.operations.plan_paged_kv import OPERATION, PagedKVPlannerBackend
from tokendraw.operations.plan_paged_kv.calls import PlanPagedKV
from tokendraw.paged_kv import PagedKVPlan


class PagedKVPlanner(Provider):
    """Computes the page metadata of batches on the device."""

    _operations = (OPERATION,)

    @untraced
    def plan(
        self,
        seq_lens: Tensor,
        block_table: Tensor,
        page_size: int,
        page_indices: bool = True,
        pad: int = -1,
        out: PagedKVPlan | None = None,
    ) -> PagedKVPlan:
        """Plan the pages of a batch, without a wait for the device: see docs/paged-kv.md.

        :param seq_lens: [B] int32, the number of tokens of each request.
        :param block_table: [B, W] int32, the pages of each request in order.
        :param page_size: tokens of a page.
        :param page_indices: whether to write the pages of all requests one behind the other.
        :param pad: value behind the last of these pages.
        :param out: buffers to write to; None: new ones.
        :raises InvalidInputError: a ValueError, before anything is launched.
        """
        call = PlanPagedKV(seq_lens, block_table, page_size, page_indices, pad, out)
        plan: PagedKVPlan = dispatch(self._negotiator, OPERATION, call)
        return plan


def prove(backend: PagedKVPlannerBackend, capabilities: Any, device: torch.device, need: Any) -> None:
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


CALLS = {"plan": PlanPagedKV}
PROVIDER = PagedKVPlanner
