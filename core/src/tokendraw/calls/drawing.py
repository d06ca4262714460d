"""Calls that draw one token a row: samples, and the drafts of speculative decoding, which have streams of their own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.calls import input_checks
from tokendraw.calls.call import WHOLE, Call, OutputCheck
from tokendraw.calls.output_checks import wrong_bounds, wrong_form, wrong_tokens
from tokendraw.calls.row_limits import unserved
from tokendraw.calls.splitting import Split
from tokendraw.output import SamplerOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.metadata import SamplingMetadata, plugin_class

_Known: TypeAlias = tuple[input_checks.LogitsForm, OutputCheck]
"""Facts about a call that its metadata remember."""


class Sample(Call):
    """A batch of logits [B, V] and the parameters of its rows."""

    __slots__ = ("logits", "metadata")

    told_in: ClassVar[str] = "SamplingMetadata.facts"

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

    def kind(self) -> Hashable:
        return row_kind(self.logits, self.metadata.facts)

    def lacking(self, capabilities: Capabilities, rows: BatchFacts | None = None) -> str | None:
        if (name := self.undeclared(capabilities)) is not None:
            return f"metadata of the class {name!r}"
        return unserved(capabilities, rows or self.metadata.facts, self.vocab_size)

    def undeclared(self, capabilities: Capabilities) -> str | None:
        name = plugin_class(self.metadata)
        return None if name in capabilities.metadata_classes else name

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata)

    def output_check(self, need: Need) -> OutputCheck:
        width = self.metadata.facts.logprobs_width(self.vocab_size)
        shape, device = self.logits.shape[:1], self.logits.device
        return partial(wrong_form, shape=shape, device=device, width=width, ranks=need.logprob_ranks)

    def wrong_values(self, output: SamplerOutput, need: Need) -> str | None:
        wrong = wrong_tokens(output, self.vocab_size)
        if wrong is not None or self.metadata.facts.max_logprobs is None:
            return wrong
        return wrong_bounds(output.logprobs, output.log_kept_mass, need.logprobs_mode)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.logits.shape[1]

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

    def recall(self, key: object) -> OutputCheck | None:
        if type(self.metadata) is not SamplingMetadata:
            return None
        known: _Known | None = self.metadata.memo.get(key)
        return known[1] if known is not None and input_checks.has_form(self.logits, known[0]) else None

    def remember(self, key: object, check: OutputCheck) -> None:
        self.metadata.memo[key] = (input_checks.form_of(self.logits), check)

    def kinds_of_rows(self, capabilities: Capabilities) -> RowKinds | str:
        metadata, (rows, vocab_size) = self.metadata, self.logits.shape
        kinds = metadata.row_kinds
        if unserved(capabilities, _UNDEMANDING, vocab_size) is not None:
            return WHOLE
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
        lacking: Sequence[str | None],
        offered: tuple[Capabilities | None, Capabilities | None],
    ) -> Split:
        split, widest = Split.of(kinds, lacking, self.logits.device), self.metadata.facts.max_logprobs
        # Logprob columns as from a single sampler: if it has logprobs, rows that did not ask get them too.
        staying, leaving = (widest if c is None or c.logprobs_modes else None for c in offered)
        return replace(
            split,
            staying=replace(split.staying, max_logprobs=staying),
            leaving=replace(split.leaving, max_logprobs=leaving),
        )

    def shared(self, split: Split) -> tuple[Self, Self]:
        own = self.logits.index_select(0, split.rows)
        return (
            type(self)(self.logits, split.for_chosen(self.metadata)),
            type(self)(own, split.for_companion(self.metadata)),
        )

    def merged(self, split: Split, chosen: SamplerOutput, companion: SamplerOutput) -> SamplerOutput:
        return split.merged(chosen, companion, self.metadata.facts.logprobs_width(self.logits.shape[1]))


class Draft(Sample):
    """A batch of which drafts are drawn, from noise that no verification at the same seeds and positions shares."""

    __slots__ = ()

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata, draft=True)


def row_kind(logits: Tensor, facts: BatchFacts) -> tuple[object, ...]:
    """Tell what decides which of a sampler's kernels draw from logits, apart from the number of rows."""
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


_UNDEMANDING = BatchFacts(
    any_greedy=False,
    any_seeded=False,
    max_top_k=0,
    any_top_p=False,
    any_min_p=False,
    any_joint=False,
    any_top_k_first=False,
)
"""Rows that every sampler serves, unless something about the batch as a whole is beyond it."""
