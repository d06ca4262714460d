"""The subject in the operation ``plan_paged_kv``, and batches of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from tokendraw.paged_kv import PagedKVPlan
from tokendraw_testing.kit.subject import OperationSubject

SENTINEL: Final = -77_777
"""Stands in every buffer before a call, and in no block table."""
INT32_RANGE: Final = (-(2**31), 2**31 - 1)


class PlanSubject(OperationSubject):
    """A subject in the operation ``plan_paged_kv``."""

    operation = "plan_paged_kv"

    def plan(
        self,
        seq_lens: Sequence[int] | Tensor,
        block_table: Tensor,
        page_size: int,
        *,
        page_indices: bool = True,
        pad: int = -1,
        out: PagedKVPlan | None = None,
    ) -> PagedKVPlan:
        """Plan on the subject's device into buffers of sentinels, and compare every value.

        :raises Violation: the plan is another object than the one passed, or a value is wrong.
        """
        lengths = self.ints(seq_lens) if not isinstance(seq_lens, Tensor) else seq_lens
        out = out or self.buffers(*block_table.shape, page_indices=page_indices)
        plan: PagedKVPlan = self.make(
            self.new_call("plan", lengths, block_table, page_size, page_indices, pad, out)
        )
        return plan

    def buffers(self, requests: int, columns: int, *, page_indices: bool = True) -> PagedKVPlan:
        """Allocate buffers full of sentinels."""
        out = PagedKVPlan.empty(requests, columns, device=self.device, page_indices=page_indices)
        fill_with_sentinels(out)
        return out

    def ints(self, values: Any) -> Tensor:
        """Put integers on the device as int32."""
        return torch.from_numpy(np.asarray(values, dtype=np.int32)).to(self.device)

    def table(self, rng: Generator, requests: int, columns: int) -> Tensor:
        """Make a block table [B, W] of pages in any order."""
        return self.ints(rng.permutation(requests * columns).reshape(requests, columns) + 1)

    def lengths(self, rng: Generator, requests: int, columns: int, page_size: int) -> list[int]:
        """Draw lengths from 0 to a full row, every third of them at a page's edge."""
        lengths = rng.integers(0, columns * page_size + 1, requests)
        lengths[::3] = lengths[::3] // page_size * page_size
        return [int(length) for length in lengths]


def fill_with_sentinels(plan: PagedKVPlan) -> None:
    """Fill all buffers with sentinels."""
    for buffer in (plan.page_indptr, plan.last_page_len, plan.page_indices):
        if buffer is not None:
            buffer.fill_(SENTINEL)
