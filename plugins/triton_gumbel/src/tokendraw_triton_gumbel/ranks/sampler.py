"""The calls of ``sample`` for one rank of several that hold the vocabulary together."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import BatchFacts, Need, SamplerOutput, SamplingMetadata, VocabShard
from tokendraw.vocab_parallel import Layout, MetadataParameters, sample_shard
from tokendraw_triton_gumbel.dispatch.draft_inputs import one_behind_the_other
from tokendraw_triton_gumbel.dispatch.empty_outputs import nothing_drawn
from tokendraw_triton_gumbel.host import params_layout, tuning
from tokendraw_triton_gumbel.host.device import LaunchDevice
from tokendraw_triton_gumbel.host.params_layout import MaybeTensors, ParamsKind
from tokendraw_triton_gumbel.host.variant import Rows, Target, layout_of
from tokendraw_triton_gumbel.ranks.column_launches import ShardLaunches, ShardPlaces, ShardVariant, shard_of
from tokendraw_triton_gumbel.ranks.columns import ShardColumns
from tokendraw_triton_gumbel.ranks.merge_launches import MessageLaunches
from tokendraw_triton_gumbel.ranks.merging import KernelMerging

_MOST_SIZES = 2048
"""Most kinds and sizes of calls that are remembered."""


class ShardSampler:
    """Draws from the columns of one rank; made by :class:`.sampler.TritonGumbelSampler`."""

    def __init__(self, here: LaunchDevice, target: Target, need: Need) -> None:
        self._here, self._target, self._need = here, target, need
        self._messages = MessageLaunches(is_interpreted=here.is_interpreted)
        self._prepared: dict[object, tuple[ShardLaunches, ShardPlaces]] = {}

    def sample(self, logits: Tensor, m: SamplingMetadata, shard: VocabShard) -> SamplerOutput:
        """Draw one token a row, the same on every rank."""
        if logits.get_device() != self._here.current():
            with torch.cuda.device(logits.device):
                return self.sample(logits, m, shard)
        layout, rows = shard.agreement.layout, len(logits)
        if not rows:  # on every rank, so that none has anything to say
            whole = logits.new_empty(0, layout.vocab_size)
            return nothing_drawn(whole, m, ranked=self._need.logprob_ranks)
        with torch.no_grad():
            tensors, asked = params_layout.tensors_of(m), params_layout.kind_of(m)
            if not (asked.dense and params_layout.are_placed_densely(m)):
                tensors = params_layout.readable(tensors)
                asked = params_layout.kind_by(m.facts, tensors)
            params, given = MetadataParameters(m, rows, logits.device), self._here.arguments
            columns = self._columns(logits, m.facts, layout, tensors, asked)
            merging = KernelMerging(self._messages, given, layout, tensors, params, self._need)
            return sample_shard(columns, params, m, shard, self._need, merging)

    def _columns(
        self,
        logits: Tensor,
        facts: BatchFacts,
        layout: Layout,
        tensors: MaybeTensors,
        asked: ParamsKind,
    ) -> ShardColumns:
        if not layout.ids.size:
            logits = logits.new_full((len(logits), 1), -float("inf"))
        logits = one_behind_the_other(logits)
        launches, places = self._prepare(logits, facts, layout, asked)
        return ShardColumns(launches, places, logits, layout, tensors, self._here.arguments)

    def _prepare(
        self, logits: Tensor, facts: BatchFacts, layout: Layout, asked: ParamsKind
    ) -> tuple[ShardLaunches, ShardPlaces]:
        """Return what calls like this one have in common, and remember it."""
        (rows, columns), shard = logits.shape, shard_of(layout)
        how = tuning.chosen(self._target.family, rows)
        read = layout_of(logits)
        key = rows, columns, read, shard, how, facts.all_greedy, asked
        found = self._prepared.get(key)
        if found is None:
            dtype, stride, high, address = read
            first_tile = Rows.of((dtype, stride, high, (address - shard.lead * dtype.itemsize) % 16))
            variant = ShardVariant(
                logits=Rows.of(read),
                paired=self._target.family == "cuda" and first_tile.paired,
                columns=shard.lead + columns,
                shard=shard,
                filtered=asked.filtered,
                described=facts.max_logprobs is not None,
                drawn=not facts.all_greedy,
                how=how,
                params=asked.types,
            )
            launches = ShardLaunches(variant, self._target)
            if not self._here.is_interpreted:
                launches.compile()
            if len(self._prepared) >= _MOST_SIZES:
                self._prepared.clear()
            found = self._prepared[key] = launches, launches.places(rows)
        return found
