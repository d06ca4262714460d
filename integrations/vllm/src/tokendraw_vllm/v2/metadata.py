"""The requests and batches of the V2 runner as tokendraw's metadata, and made-up batches to compile kernels for.

vLLM keeps the parameters in pinned host memory that the device reads, in alternating buffers. A copy in device memory,
with an entry a slot, changes only when a request is added, and keeps its address, so a step builds nothing but the
host's facts about its rows. These are kept too while no request comes: steps of a running batch are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokendraw import BatchFacts, SamplingMetadata
from tokendraw.engines import RULE_FIELDS, warmup_rules
from tokendraw_vllm.v2.edits import EditedRows, Edits
from tokendraw_vllm.v2.rules import Orders, Rules, filled_column, metadata_fields

_DTYPES = {  # as in kernels without the parameter, so that a missing parameter compiles nothing
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seeds": torch.int64,
}


def example_batches(
    max_requests: int, device: torch.device, *, seeds_every_row: bool, least_rows: int = 1
) -> list[SamplingMetadata]:
    """Make up batches like those of the V2 runner, to compile kernels; with rules, those that a variable names.

    :param max_requests: number of slots; the batches have the least number of rows, or as many as slots, up to 256.
    :param least_rows: 1, or K + 1 for a verification of one request.
    """
    columns = empty_columns(max_requests, device)
    for name, value in {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05}.items():
        columns[name].fill_(value)
    switches = itertools.product((False, True), (0, 50), (False, True), (False, True))
    asked: list[dict[str, float]] = [{}, *warmup_rules()]
    rules_of_forms = [
        {name: filled_column(max_requests, value, device) for name, value in rules.items()} for rules in asked
    ]
    forms = [
        make_metadata(
            columns,
            BatchFacts(
                any_greedy=greedy,
                max_top_k=top_k,
                all_top_k=top_k > 0,
                any_top_p=top_p,
                any_min_p=min_p,
                any_joint=False,
                filters=tuple(name for name in rules if name not in RULE_FIELDS),
            ),
            metadata_fields(rules),
            has_seeds=has_seeds,
        )
        for (greedy, top_k, top_p, min_p), rules in itertools.product(switches, rules_of_forms)
        for has_seeds in ((True,) if seeds_every_row else (False, True))
    ]
    counts = sorted({least_rows, max(least_rows, min(max_requests, 256))})
    rows = [torch.arange(count, device=device) % max_requests for count in counts]
    return [form.for_rows(slots, slots) for form in forms for slots in rows]


def empty_columns(requests: int, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.zeros(requests, dtype=dtype, device=device) for name, dtype in _DTYPES.items()}


def make_metadata(
    columns: Mapping[str, Tensor],
    facts: BatchFacts,
    rules: Mapping[str, Any],
    *,
    has_seeds: bool,
) -> SamplingMetadata:
    """Describe batches with given facts; :meth:`SamplingMetadata.for_rows` fills in the rows."""
    placeholder = columns["seeds"].new_zeros(1)
    return SamplingMetadata(
        temperature=columns["temperature"],
        top_k=columns["top_k"] if facts.max_top_k else None,
        top_p=columns["top_p"] if facts.any_top_p else None,
        min_p=columns["min_p"] if facts.any_min_p else None,
        seed=columns["seeds"] if has_seeds else None,
        positions=placeholder,
        row_index=placeholder,
        facts=facts,
        **rules,
    )


def batch_facts(
    states: Any, requests: np.ndarray, rules: tuple[str, ...], *, any_min_p: bool | None = None
) -> BatchFacts:
    top_k = states.top_k.np[requests]
    active = top_k < states.vocab_size
    greedy = states.temperature.np[requests] == 0.0
    return BatchFacts(
        any_greedy=bool(greedy.any()),
        all_greedy=bool(greedy.all()),
        max_top_k=int(top_k[active].max()) if active.any() else 0,
        all_top_k=bool((active | greedy).all()),
        any_top_p=bool((states.top_p.np[requests] < 1.0).any()),
        any_min_p=bool((states.min_p.np[requests] > 0.0).any()) if any_min_p is None else any_min_p,
        any_joint="joint" in rules,
        filters=tuple(name for name in rules if name not in RULE_FIELDS),
    )


MAX_CACHED = 64
"""Limit of cached batches, and of cached metadata, one for each set of facts: mixed traffic may bring many."""


class BatchSummary(NamedTuple):
    """Host facts about the requests of a batch."""

    all_greedy: bool
    may_draw_raw: bool
    """Whether the model's logits need no edit of vLLM's."""
    edited: EditedRows | None
    """The rows that tokendraw edits."""
    is_plain: bool
    """Whether no request has a filter, a seed, a rule or an edit."""
    metadata_by_stage: dict[bool, SamplingMetadata]
    """Metadata without rows, by whether it describes the model's logits."""


class BatchSummaries:
    """Summaries of batches, by the slots of their requests."""

    def __init__(self, states: Any, edits: Edits, rules: Rules) -> None:
        self._states, self._edits, self._rules = states, edits, rules
        self._summaries: dict[bytes, BatchSummary] = {}
        self._last: tuple[bytes, BatchSummary] | None = None

    def clear(self) -> None:
        """Forget all batches, since a request came or is edited elsewhere."""
        self._summaries.clear()
        self._last = None

    def of(self, requests: np.ndarray) -> BatchSummary:
        key = requests.tobytes()
        if self._last is not None and key == self._last[0]:  # a comparison is quicker than a hash
            return self._last[1]
        batch = self._summaries.get(key)
        if batch is None:
            all_greedy = bool((self._states.temperature.np[requests] == 0.0).all())
            edited = self._edits.rows(requests)
            batch = BatchSummary(
                all_greedy,
                not (all_greedy or self._edits.by_vllm[requests].any()),
                edited,
                edited is None and self._is_plain(requests),
                {},
            )
            if len(self._summaries) >= MAX_CACHED:
                self._summaries.clear()
            self._summaries[key] = batch
        self._last = key, batch
        return batch

    def _is_plain(self, requests: np.ndarray) -> bool:
        rules = self._rules.active(requests)
        facts = batch_facts(self._states, requests, rules)
        has_filters = facts.max_top_k or facts.any_top_p or facts.any_min_p
        return not (rules or has_filters or self._states.any_explicit_seed(requests))


class RequestColumns:
    """The parameters of all requests of a sampler of vLLM: columns with an entry a slot."""

    def __init__(self, states: Any, rules: Rules, orders: Orders, device: torch.device) -> None:
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

        :param raw: whether temperature and min-p are still to be applied.
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
