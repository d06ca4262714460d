"""The planner of pages: a launch a plan, and all kernels compiled when the planner is built."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import PagedKVPlan
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.launch import current_stream, group
from tokendraw_triton_gumbel.kernels.shared.argument_groups import BlockTable, PagePlan
from tokendraw_triton_gumbel.launches.paged_kv import PlanLaunches


class TritonPagedKVPlanner:
    """Page plans by one Triton kernel. Made by ``tokendraw.load("plan_paged_kv", "triton-gumbel")``."""

    def __init__(self, device: torch.device) -> None:
        launch_device = LaunchDevice.of(device)
        self._current_index, self._convert = launch_device.current_index, launch_device.converter.tensors
        self._launches = PlanLaunches(launch_device.processors)
        with torch.cuda.device(device if device.type == "cuda" else -1):
            self._launches.compile()

    def plan(
        self,
        seq_lens: Tensor,
        block_table: Tensor,
        page_size: int,
        page_indices: bool = True,
        pad: int = -1,
        out: PagedKVPlan | None = None,
    ) -> PagedKVPlan:
        """Write the plan of a batch into ``out``; see :class:`tokendraw.plugin.PagedKVPlannerBackend`."""
        device = seq_lens.get_device()
        if device != self._current_index():
            with torch.cuda.device(device):
                return self.plan(seq_lens, block_table, page_size, page_indices, pad, out)
        requests, width = block_table.shape
        if out is None:
            out = PagedKVPlan.empty(requests, width, device=seq_lens.device, page_indices=page_indices)
        launch, grid = self._launches.of(requests, width, page_indices)
        lengths, base, *buffers = self._convert(
            (seq_lens, block_table, out.page_indptr, out.last_page_len, out.page_indices)
        )
        table = group(BlockTable, (base, block_table.stride(0), width))
        plan = group(PagePlan, buffers)
        launch(grid, (lengths, table, plan, requests, page_size, pad), current_stream(device))
        return out
