"""The call of a plan: its arguments, and the output buffers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.operations.plan_paged_kv.backend import PagedKVPlannerBackend
from tokendraw.operations.plan_paged_kv.input_checks import check_numbers, check_out, check_tensors
from tokendraw.operations.plan_paged_kv.plan_values import wrong_plan
from tokendraw.paged_kv import PagedKVPlan


class Plan(Call):
    """Lengths [B] and block table [B, W] of a batch, and the options of the plan."""

    __slots__ = ("block_table", "out", "pad", "page_indices", "page_size", "seq_lens", "written")

    def __init__(
        self,
        seq_lens: Tensor,
        block_table: Tensor,
        page_size: int,
        page_indices: bool = True,
        pad: int = -1,
        out: PagedKVPlan | None = None,
    ) -> None:
        self.seq_lens = seq_lens
        self.block_table = block_table
        self.page_size = page_size
        self.page_indices = page_indices
        self.pad = pad
        self.out = out
        self.written: PagedKVPlan | None = None  # the buffers that the provider was given, once it was called

    def check(self, device: torch.device, need: HostNeed) -> None:
        check_tensors(self.seq_lens, self.block_table, device)
        self.page_size, self.pad = check_numbers(self.page_size, self.page_indices, self.pad)
        if self.out is not None:
            check_out(self.out, self.seq_lens, self.block_table, page_indices=self.page_indices)

    def tensors(self) -> dict[str, Tensor]:
        return {"seq_lens": self.seq_lens, "block_table": self.block_table}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(
            tensors["seq_lens"],
            tensors["block_table"],
            self.page_size,
            self.page_indices,
            self.pad,
            self.out,
        )

    def kind(self) -> Hashable:
        return self.block_table.shape[1].bit_length(), self.page_size, self.page_indices

    def run(self, backend: PagedKVPlannerBackend) -> Any:
        seq_lens, block_table, wanted = self.seq_lens, self.block_table, self.page_indices
        out = self.out
        if out is None:
            rows, columns = block_table.shape
            out = PagedKVPlan.empty(rows, columns, device=seq_lens.device, page_indices=wanted)
        self.written = out
        return backend.plan(seq_lens, block_table, self.page_size, wanted, self.pad, out)

    def output_check(self, need: HostNeed) -> OutputCheck:
        return self._misplaced  # of this call alone: plans are not remembered

    def _misplaced(self, output: object) -> str | None:
        if output is self.written:
            return None
        other = "another " if isinstance(output, PagedKVPlan) else ""
        return f"the plan that it was given as 'out', found {other}{type(output).__name__}"

    def wrong_values(self, output: PagedKVPlan, need: HostNeed) -> str | None:
        return wrong_plan(output, self.seq_lens, self.block_table, self.page_size, self.pad)

    @property
    def num_rows(self) -> int:
        return self.seq_lens.shape[0]
