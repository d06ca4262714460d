"""The requests of the V2 runner's sampler as tokendraw's parameters: an entry a slot, copied when a request comes.

vLLM keeps the parameters in pinned host memory that the device reads, in alternating buffers. A copy in device memory
changes only when a request is added, and keeps its address, so a step builds nothing but the host's facts about its
rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch

from tokendraw import SamplingMetadata
from tokendraw_vllm._v2_batches import MAX_CACHED
from tokendraw_vllm._v2_metadata import batch_facts, empty_columns, make_metadata
from tokendraw_vllm._v2_orders import Orders
from tokendraw_vllm._v2_rules import Rules


class RequestColumns:
    """The parameters of all requests of a sampler of vLLM: columns with an entry a slot."""

    def __init__(self, states: Any, rules: Rules, orders: Orders, device: torch.device) -> None:
        """Hold vLLM's ``SamplingStates`` of a new sampler, without requests."""
        self._states, self._rules, self._orders = states, rules, orders
        self.columns = empty_columns(states.max_num_reqs, device)
        self.is_stale = True
        """Whether a request came since the last copy."""
        self._metadata_by_facts: dict[Hashable, SamplingMetadata] = {}

    def refresh(self) -> None:
        """Copy the parameters, if stale, after the draws of earlier steps, on the current stream."""
        if not self.is_stale:
            return
        for name, column in self.columns.items():
            column.copy_(getattr(self._states, name).gpu, non_blocking=True)
        self._orders.refresh(self.columns)
        self._rules.refresh()
        self.is_stale = False

    def metadata(self, requests: np.ndarray, *, raw: bool, seeds_every_row: bool) -> SamplingMetadata:
        """Describe a batch of requests; equal facts share metadata, and so the samplers' caches on it.

        :param requests: slots of the requests.
        :param raw: whether temperature and min-p are still to be applied.
        :param seeds_every_row: whether rows without a user's seed get one.
        """
        rules = self._rules.active(requests)
        facts = batch_facts(
            self._states, requests, rules, any_min_p=None if raw else self._orders.any_min_p(requests)
        )
        has_seeds = seeds_every_row or self._states.any_explicit_seed(requests)
        key = facts, raw, has_seeds, rules
        if key not in self._metadata_by_facts:
            while len(self._metadata_by_facts) >= MAX_CACHED:
                del self._metadata_by_facts[next(iter(self._metadata_by_facts))]
            columns = self.columns if raw else {**self.columns, **self._orders.columns}
            self._metadata_by_facts[key] = make_metadata(
                columns, facts, self._rules.tensors(rules), has_seeds=has_seeds
            )
        return self._metadata_by_facts[key]
