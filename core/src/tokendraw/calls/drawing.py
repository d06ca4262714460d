"""Calls for a token a row: samples, and the drafts of speculative decoding, from separate streams."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.backends.description.requirement import Requirement
from tokendraw.calls import input_checks
from tokendraw.calls.call import OutputCheck, RowCall
from tokendraw.calls.output_checks import wrong_bounds, wrong_form, wrong_tokens
from tokendraw.calls.row_requirements import LOGPROBS
from tokendraw.calls.splitting import RowSplit
from tokendraw.output import SamplerOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.metadata import SamplingMetadata, plugin_class

_CheckedCall: TypeAlias = tuple[input_checks.LogitsForm, OutputCheck]
"""Form of a checked call's logits and the check of its output, cached with the metadata."""


class Sample(RowCall):
    """A batch of logits [B, V] and the parameters of the rows."""

    __slots__ = ("logits", "metadata")

    hint_field: ClassVar[str] = "SamplingMetadata.facts"

    def __init__(self, logits: Tensor, metadata: SamplingMetadata) -> None:
        self.logits = logits
        self.metadata = metadata

    def check(self, device: torch.device, need: Need) -> None:
        input_checks.check_logits("logits", self.logits, device)
        input_checks.check_batch("logits", self.logits, self.metadata, need)

    def check_values(self) -> None:
        self.metadata.check_values()

    def tensors(self) -> dict[str, Tensor]:
        return {"logits": self.logits}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors["logits"], self.metadata)

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata)

    def output_check(self, need: Need) -> OutputCheck:
        width = self.facts.logprobs_width(self.vocab_size)
        shape, device = self.logits.shape[:1], self.logits.device
        return partial(wrong_form, shape=shape, device=device, width=width, ranks=need.logprob_ranks)

    def wrong_values(self, output: SamplerOutput, need: Need) -> str | None:
        wrong = wrong_tokens(output, self.vocab_size)
        if wrong is not None or self.facts.max_logprobs is None:
            return wrong
        return wrong_bounds(output.logprobs, output.log_kept_mass, need.logprobs_mode)

    def signature(self) -> Hashable:
        return logits_signature(self.logits, self.facts)

    def undeclared_class(self, capabilities: Capabilities) -> str | None:
        name = plugin_class(self.metadata)
        return None if name in capabilities.metadata_classes else name

    @property
    def facts(self) -> BatchFacts:
        return self.metadata.facts

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[1]

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

    def cached_check(self, key: object) -> OutputCheck | None:
        if type(self.metadata) is not SamplingMetadata:
            return None
        checked: _CheckedCall | None = self.metadata.memo.get(key)
        return checked[1] if checked is not None and input_checks.has_form(self.logits, checked[0]) else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        self.metadata.memo[key] = (input_checks.form_of(self.logits), check)

    def row_kinds(self) -> RowKinds | str:
        metadata, rows = self.metadata, self.logits.shape[0]
        kinds = metadata.row_kinds
        if kinds is None:
            return "its metadata has no row_kinds"
        if metadata.row_index is not None and kinds.slot_of_row is None:
            return "its row_index is not known on the host"
        if kinds.num_rows != rows:
            return f"its row_kinds speak of {kinds.num_rows} rows, not of {rows}"
        if not kinds.is_current():
            return "its parameters were changed after its row_kinds were made"
        return kinds

    def split(
        self,
        kinds: RowKinds,
        reasons: Sequence[str | None],
        unsupported: Sequence[tuple[Requirement, ...]],
    ) -> RowSplit:
        split, widest = RowSplit.of(kinds, reasons, self.logits.device), self.facts.max_logprobs
        # Logprob columns as from a single sampler: if it supports logprobs, rows that did not ask get them too.
        staying, leaving = (None if LOGPROBS in missing else widest for missing in unsupported)
        return replace(
            split,
            staying=replace(split.staying, max_logprobs=staying),
            leaving=replace(split.leaving, max_logprobs=leaving),
        )

    def divided(self, split: RowSplit) -> tuple[Self, Self]:
        leaving = self.logits.index_select(0, split.rows)
        return (
            type(self)(self.logits, split.for_chosen(self.metadata)),
            type(self)(leaving, split.for_companion(self.metadata)),
        )

    def merged(
        self, split: RowSplit, output: SamplerOutput, companion_output: SamplerOutput
    ) -> SamplerOutput:
        return split.merged(output, companion_output, self.facts.logprobs_width(self.vocab_size))


class Draft(Sample):
    """A batch of logits for drafts, drawn from noise of separate streams: verifications use others."""

    __slots__ = ()

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata, draft=True)


def logits_signature(logits: Tensor, facts: BatchFacts) -> tuple[object, ...]:
    """Return the properties for the choice of kernels, the number of rows apart."""
    return (
        logits.dtype,
        logits.shape[1],
        facts.any_greedy,
        facts.any_seeded,
        facts.max_top_k != 0,
        facts.any_top_p,
        facts.any_min_p,
        facts.any_joint,
        facts.max_logprobs is not None,
    )
