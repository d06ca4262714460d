"""The operation ``plan_paged_kv``: the page metadata of a batch, from lengths known to the device alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tokendraw.backends.description.operation import Operation

if TYPE_CHECKING:
    from torch import Tensor

    from tokendraw.paged_kv import PagedKVPlan


@runtime_checkable
class PagedKVPlannerBackend(Protocol):
    """The planner returned by ``tokendraw_build`` for ``plan_paged_kv``."""

    def plan(
        self,
        seq_lens: Tensor,
        block_table: Tensor,
        page_size: int,
        page_indices: bool = True,
        pad: int = -1,
        out: PagedKVPlan | None = None,
    ) -> PagedKVPlan:
        """Write the plan of a batch into every element of ``out``, and return ``out``.

        :param seq_lens: [B] int32, dense. Lengths below 0 count as 0, those above ``W * page_size`` as that.
        :param block_table: [B, W] int32, any row stride, ids of one row one behind the other. Not to be modified.
        :param page_size: tokens a page, from 1.
        :param page_indices: whether the pages are asked for: ``out.page_indices`` is None if not.
        :param pad: what stands behind the last page.
        :param out: dense buffers; the core always passes them.
        """


OPERATION = Operation(
    name="plan_paged_kv",
    module="tokendraw.operations.plan_paged_kv.provider",
    methods=("plan",),
)
