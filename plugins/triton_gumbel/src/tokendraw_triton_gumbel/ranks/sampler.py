"""The sampler of a rank where several ranks hold the vocabulary: finds the launches, and runs the exchange."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import BatchFacts, Need, SamplerOutput, SamplingMetadata, VocabShard
from tokendraw.row_parameters import MetadataParameters
from tokendraw.vocab_parallel import Layout, sample_shard
from tokendraw_triton_gumbel.dispatch.empty_outputs import empty_sampler_output
from tokendraw_triton_gumbel.host.bounded_cache import BoundedCache
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.params_layout import ParamsLayout, ParamTensors, contiguous_params
from tokendraw_triton_gumbel.host.row_layout import RowAccess, row_layout, with_unit_stride
from tokendraw_triton_gumbel.host.tuning import configuration_for
from tokendraw_triton_gumbel.host.variant import Target
from tokendraw_triton_gumbel.ranks.column_launches import ColumnLaunches
from tokendraw_triton_gumbel.ranks.columns import ShardColumns
from tokendraw_triton_gumbel.ranks.merge_launches import MergeLaunches
from tokendraw_triton_gumbel.ranks.merging import KernelMerging
from tokendraw_triton_gumbel.ranks.shard_variant import ShardGeometry, ShardVariant, shard_of

_MAX_SIZES = 2048
"""Upper limit of cached variants and batch sizes."""


class ShardSampler:
    """Draws from the columns of a rank; made by :class:`.sampler.TritonGumbelSampler`."""

    def __init__(self, device: LaunchDevice, target: Target, need: Need) -> None:
        self._device, self._target, self._need = device, target, need
        self._merge_launches = MergeLaunches()
        self._cache: BoundedCache[object, tuple[ColumnLaunches, ShardGeometry]] = BoundedCache(_MAX_SIZES)

    def sample(self, logits: Tensor, m: SamplingMetadata, shard: VocabShard) -> SamplerOutput:
        """Draw one token a row, the same on every rank."""
        if logits.get_device() != self._device.current_index():
            with torch.cuda.device(logits.device):
                return self.sample(logits, m, shard)
        layout, rows = shard.agreement.layout, len(logits)
        if not rows:  # on every rank, so that none has anything to say
            full_width = logits.new_empty(0, layout.vocab_size)
            return empty_sampler_output(full_width, m, self._need)
        with torch.no_grad():
            tensors, kernel_layout = contiguous_params(m)
            params, converter = MetadataParameters(m, rows, logits.device), self._device.converter
            columns = self._columns(logits, m.facts, layout, tensors, kernel_layout)
            merging = KernelMerging(self._merge_launches, converter, layout, tensors, params, self._need)
            return sample_shard(columns, params, m, shard, self._need, merging)

    def _columns(
        self,
        logits: Tensor,
        facts: BatchFacts,
        layout: Layout,
        tensors: ParamTensors,
        kernel_layout: ParamsLayout,
    ) -> ShardColumns:
        if not layout.ids.size:
            logits = logits.new_full((len(logits), 1), -float("inf"))
        logits = with_unit_stride(logits)
        launches, geometry = self._cached_launches(logits, facts, layout, kernel_layout)
        return ShardColumns(launches, geometry, logits, layout, tensors, self._device.converter)

    def _cached_launches(
        self, logits: Tensor, facts: BatchFacts, layout: Layout, kernel_layout: ParamsLayout
    ) -> tuple[ColumnLaunches, ShardGeometry]:
        """Look up or build, then cache, the launches of a variant and the geometry of a batch size."""
        (rows, columns), shard = logits.shape, shard_of(layout)
        configuration, rows_in = configuration_for(self._target.family, rows), row_layout(logits)
        key = rows, columns, rows_in, shard, configuration, facts.all_greedy, kernel_layout
        cached = self._cache.get(key)
        if cached is None:
            variant = ShardVariant(
                logits=RowAccess.of(rows_in),
                columns=shard.lead + columns,
                shard=shard,
                has_filters=kernel_layout.has_filters,
                has_logprobs=facts.max_logprobs is not None,
                is_drawn=not facts.all_greedy,
                moments=() if facts.all_greedy and facts.max_logprobs is None else kernel_layout.moments,
                configuration=configuration,
                param_dtypes=kernel_layout.dtypes,
            )
            launches = ColumnLaunches(variant, self._target)
            cached = self._cache.add(key, (launches, launches.geometry(rows)))
        return cached
