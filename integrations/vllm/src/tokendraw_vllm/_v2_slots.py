"""The requests of the V2 runner's sampler as tokendraw's parameters: an entry a slot, copied when a request comes.

vLLM keeps the parameters in pinned host memory that the device reads, in alternating buffers. A copy in device memory
changes only when a request is added, and keeps its address, so a step builds nothing but the host's facts about its
rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw.engines import RULE_FIELDS
from tokendraw_vllm._replacement import Replacement
from tokendraw_vllm._v2_metadata import empty_columns, make_metadata
from tokendraw_vllm._v2_orders import Orders
from tokendraw_vllm._v2_rules import NOT_REPLACED, Rules

_MAX_CACHED_BATCHES = 64
"""Limit of cached batches, and of cached metadata, one for each set of facts: mixed traffic may bring many."""


class _BatchSummary(NamedTuple):
    """Host facts about the requests of a batch."""

    all_greedy: bool
    may_draw_raw: bool
    metadata_by_stage: dict[bool, SamplingMetadata]
    """Metadata without rows, by whether it describes the model's logits."""


class Slots:
    """The parameters of all requests of a sampler of vLLM, and the draws in its place."""

    def __init__(
        self,
        sampler: Any,
        wait_for_load: Callable[[], Replacement | None],
        device: torch.device,
        *,
        raw: bool,
        has_orders: bool,
    ) -> None:
        """Hold the states of a new sampler, without requests.

        :param sampler: the sampler of vLLM.
        :param wait_for_load: waits for the replacement; returns None if vLLM draws.
        :param raw: whether batches may be drawn from the model's logits. Between these and edited logits the last bit
            may differ, so that a near tie may fall otherwise.
        :param has_orders: whether requests may have a filter order: tokendraw draws all that the sampler has edited.
        """
        self._sampler = sampler
        self._states = sampler.sampling_states
        self._wait_for_load: Callable[[], Replacement | None] | None = wait_for_load
        self._replacement: Replacement | None = None
        self._raw = raw
        requests = self._states.max_num_reqs
        self._columns = empty_columns(requests, device)
        self._edits_logits = np.zeros(requests, dtype=bool)
        """Requests that edit their logits by anything but temperature and filters."""
        self._is_stale = True
        self._metadata_by_facts: dict[Hashable, SamplingMetadata] = {}
        self._batches: dict[bytes, _BatchSummary] = {}
        """Batches by the slots of their rows: steps of a running batch are equal until a request is added."""
        self._last: tuple[bytes, _BatchSummary] | None = None
        """The last batch."""
        self._original_add_request = self._states.add_request
        self._rules = Rules(requests, device, has_orders=has_orders)
        self._orders = Orders(self._states, device)
        self._is_withheld = False
        self._has_drawn = False
        """Whether tokendraw has drawn the step that vLLM has begun."""

    def add_request(self, slot: int, sampling_params: Any, add: Callable[[], None]) -> None:
        """Note whether a request edits its logits, while vLLM's sampler adds the request.

        vLLM keeps one flag for edits and filters together. So the states' part of the flag is withheld during the call
        and added afterwards.
        """
        filtered = []

        def without_flag(*arguments: Any) -> bool:
            filtered.append(bool(self._original_add_request(*arguments)))
            return False

        self._states.add_request = without_flag
        try:
            add()
        finally:
            del self._states.add_request
        flags = self._sampler.needs_logits_processing
        self._edits_logits[slot] = flags[slot]
        flags[slot] |= any(filtered)
        self._rules.add_request(slot, sampling_params)
        self._orders.add_request(slot, has_order=self._rules.has_order(slot))
        self._is_stale = True
        self._batches.clear()
        self._last = None

    def can_draw(self) -> bool:
        """Return whether tokendraw draws; the first call waits for the load."""
        if self._wait_for_load is not None:
            self._replacement, self._wait_for_load = self._wait_for_load(), None
        return self._replacement is not None and self._replacement.sampler is not None

    @contextlib.contextmanager
    def step(self, requests: np.ndarray) -> Iterator[None]:
        """Enclose a step of vLLM's sampler that edits logits, and may call :meth:`draw`.

        Rules of its requests are named in the log if vLLM draws.
        """
        self._has_drawn = False
        if self.can_draw() and self._orders.any(requests):
            if self._is_stale:
                self._refresh()
            self._is_withheld = True
            try:
                with self._orders.withheld():
                    yield
            finally:
                self._is_withheld = False
        else:
            yield
        if not self._has_drawn and not self.all_greedy(requests):
            by_vllm = self.can_draw() and f"{type(self._sampler).__name__} of vLLM draws"
            self._rules.log_lost(requests, by_vllm or NOT_REPLACED)

    def give_back(self, logits: Tensor, slot_of_row: Tensor, requests: np.ndarray) -> None:
        """Have vLLM apply to logits [rows, V] what this step withholds from it, since tokendraw did not draw."""
        if self._is_withheld:
            self._orders.apply(logits, slot_of_row, requests)

    def all_greedy(self, requests: np.ndarray) -> bool:
        """Return whether every request is greedy: vLLM draws greedy batches."""
        return self._batch(requests).all_greedy

    def may_draw_raw(self, requests: np.ndarray) -> bool:
        """Return whether a batch of requests can be drawn from the model's logits."""
        return self._raw and self._batch(requests).may_draw_raw

    def _batch(self, requests: np.ndarray) -> _BatchSummary:
        key = requests.tobytes()
        if self._last is not None and key == self._last[0]:  # a comparison is quicker than a hash
            return self._last[1]
        batch = self._batches.get(key)
        if batch is None:
            all_greedy = bool((self._states.temperature.np[requests] == 0.0).all())
            batch = _BatchSummary(all_greedy, not (all_greedy or self._edits_logits[requests].any()), {})
            if len(self._batches) >= _MAX_CACHED_BATCHES:
                self._batches.clear()
            self._batches[key] = batch
        self._last = key, batch
        return batch

    def draw(
        self, logits: Tensor, slot_of_row: Tensor, requests: np.ndarray, positions: Tensor, *, raw: bool
    ) -> Tensor | None:
        """Draw a token in each row: ids [rows] int64; None after a failure, now or before, or if vLLM draws.

        :param logits: [rows, V].
        :param slot_of_row: [rows] integer, on the device.
        :param requests: slots of the requests, on the host.
        :param positions: [rows] integer: index of the token fed last.
        :param raw: whether temperature and min-p are still to be applied.
        """
        replacement = self._replacement
        if replacement is None:
            return None
        if not raw and logits.shape[0] == 1 and logits.stride(0) != logits.shape[1]:
            # vLLM's copy of a single row keeps the padding of the model's logits, a copy of several rows does not
            logits = logits[0].unsqueeze(0)

        def metadata() -> SamplingMetadata:
            if self._is_stale:
                self._refresh()
            metadata_by_stage = self._batch(requests).metadata_by_stage
            if raw not in metadata_by_stage:
                metadata_by_stage[raw] = self._cached_metadata(
                    requests, raw=raw, seeds_every_row=replacement.seeds_every_row
                )
            return metadata_by_stage[raw].for_rows(slot_of_row, positions)

        ids = replacement.draw(logits, metadata)
        self._has_drawn = ids is not None
        return ids

    def _refresh(self) -> None:
        """Copy the parameters after the draws of earlier steps, on the current stream."""
        for name, column in self._columns.items():
            column.copy_(getattr(self._states, name).gpu, non_blocking=True)
        self._orders.refresh(self._columns)
        self._rules.refresh()
        self._is_stale = False

    def _cached_metadata(self, requests: np.ndarray, *, raw: bool, seeds_every_row: bool) -> SamplingMetadata:
        """Describe a batch of requests; equal facts share metadata, and so the samplers' caches on it."""
        rules = self._rules.active(requests)
        facts = self._facts(requests, raw=raw, rules=rules)
        has_seeds = seeds_every_row or self._states.any_explicit_seed(requests)
        key = facts, raw, has_seeds, rules
        if key not in self._metadata_by_facts:
            while len(self._metadata_by_facts) >= _MAX_CACHED_BATCHES:
                del self._metadata_by_facts[next(iter(self._metadata_by_facts))]
            columns = self._columns if raw else {**self._columns, **self._orders.columns}
            self._metadata_by_facts[key] = make_metadata(
                columns, facts, self._rules.tensors(rules), has_seeds=has_seeds
            )
        return self._metadata_by_facts[key]

    def _facts(self, requests: np.ndarray, *, raw: bool, rules: tuple[str, ...]) -> BatchFacts:
        """Collect the host's facts about requests.

        :param raw: whether vLLM has applied neither temperatures nor min-p.
        :param rules: names of the rules beyond vLLM's parameters.
        """
        top_k = self._states.top_k.np[requests]
        active = top_k < self._states.vocab_size
        greedy = self._states.temperature.np[requests] == 0.0
        min_p = self._states.min_p.np[requests]
        return BatchFacts(
            any_greedy=bool(greedy.any()),
            all_greedy=bool(greedy.all()),
            max_top_k=int(top_k[active].max()) if active.any() else 0,
            all_top_k=bool((active | greedy).all()),
            any_top_p=bool((self._states.top_p.np[requests] < 1.0).any()),
            any_min_p=bool((min_p > 0.0).any()) if raw else self._orders.any_min_p(requests),
            any_joint="joint" in rules,
            filters=tuple(name for name in rules if name not in RULE_FIELDS),
        )
