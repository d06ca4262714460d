"""The object that ``tokendraw.load("plan_paged_kv")`` returns."""

from __future__ import annotations

from torch import Tensor

from tokendraw._torch.untraced import untraced
from tokendraw.calls.provider import Provider
from tokendraw.operations.plan_paged_kv.calls import PlanPagedKV
from tokendraw.paged_kv import PagedKVPlan


class PagedKVPlanner(Provider):
    """Computes the page metadata of batches on the device."""

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
        plan: PagedKVPlan = self._dispatcher.dispatch(call)
        return plan
