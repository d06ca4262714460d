"""Host facts about the batches of the V2 runner, kept while no request comes: steps of a running batch are equal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tokendraw import SamplingMetadata
from tokendraw_vllm._v2_edits import Edits
from tokendraw_vllm._v2_mirror import EditedRows
from tokendraw_vllm._v2_rules import Rules

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
        """Hold vLLM's ``SamplingStates``."""
        self._states, self._edits, self._rules = states, edits, rules
        self._summaries: dict[bytes, BatchSummary] = {}
        self._last: tuple[bytes, BatchSummary] | None = None

    def clear(self) -> None:
        """Forget all batches, since a request came or is edited elsewhere."""
        self._summaries.clear()
        self._last = None

    def of(self, requests: np.ndarray) -> BatchSummary:
        """Return the summary of a batch of requests."""
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
        states = self._states
        return not (
            self._rules.active(requests)
            or states.any_explicit_seed(requests)
            or (states.top_k.np[requests] < states.vocab_size).any()
            or (states.top_p.np[requests] < 1.0).any()
            or (states.min_p.np[requests] > 0.0).any()
        )
