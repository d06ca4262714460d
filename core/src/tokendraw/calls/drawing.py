"""Calls with parameters of rows; those for a token a row are samples, and the drafts of speculative decoding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import Need
from tokendraw.backends.description.requirement import Requirement
from tokendraw.calls import input_checks
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.output_checks import wrong_bounds, wrong_form, wrong_tokens
from tokendraw.calls.row_requirements import LOGPROBS
from tokendraw.calls.splitting import RowSplit
from tokendraw.output import SamplerOutput
from tokendraw.parameters.batch_facts import BatchFacts, RowKinds
from tokendraw.parameters.fields import FACT_OF_COLUMN
from tokendraw.parameters.metadata import SamplingMetadata

_CheckedCall: TypeAlias = tuple[input_checks.LogitsForm, OutputCheck]
"""Form of a checked call's logits and the check of its output, cached with the metadata."""


class RowCall(Call):
    """A call with logits and parameters of rows."""

    __slots__ = ("logits", "metadata")

    hint_field: ClassVar[str] = "SamplingMetadata.facts"
    output_class: ClassVar[type[Any]] = SamplerOutput

    def __init__(self, logits: Tensor, metadata: SamplingMetadata) -> None:
        self.logits = logits
        self.metadata = metadata

    @abstractmethod
    def wrong_tokens(self, output: Any) -> str | None:
        """Describe the first wrong token of an output of the right form."""

    def check_values(self) -> None:
        self.metadata.check_values()

    def output_check(self, need: Need) -> OutputCheck:
        return partial(
            wrong_form,
            kind=self.output_class,
            shape=self.tokens_shape,
            device=self.logits.device,
            width=self.facts.logprobs_width(self.vocab_size),
            given_ids=self.num_given_ids,
            ranks=need.logprob_ranks,
            thresholds=self.logits.shape[0] if need.threshold else None,
            has_ceiling=self.facts.any_ceiling,
        )

    def wrong_values(self, output: Any, need: Need) -> str | None:
        wrong = self.wrong_tokens(output)
        if wrong is not None or self.facts.max_logprobs is None:
            return wrong
        return wrong_bounds(output.logprobs, output.log_kept_mass, need.logprobs_mode)

    @property
    def tokens_shape(self) -> tuple[int, ...]:
        """Return the shape of the output's tokens: [B] unless a class says otherwise."""
        return self.logits.shape[:1]

    @property
    def facts(self) -> BatchFacts:
        """Return the facts about the rows."""
        return self.metadata.facts

    @property
    def num_given_ids(self) -> int | None:
        """Return M, the most ids whose logprobs a row asks for; None where no row gives any."""
        ids = self.metadata.given_ids
        return None if ids is None else ids.shape[1]

    @property
    def vocab_size(self) -> int:
        """Return the number V of token ids."""
        return self.logits.shape[1]


class Sample(RowCall):
    """A batch of logits [B, V] and the parameters of the rows, perhaps divided between two backends."""

    __slots__ = ()

    def check(self, device: torch.device, need: Need) -> None:
        input_checks.check_logits("logits", self.logits, device)
        input_checks.check_batch("logits", self.logits, self.metadata, need)

    def tensors(self) -> dict[str, Tensor]:
        return {"logits": self.logits}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tensors["logits"], self.metadata)

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata)

    def wrong_tokens(self, output: SamplerOutput) -> str | None:
        return wrong_tokens(output, self.vocab_size)

    def signature(self) -> Hashable:
        return logits_signature(self.logits, self.facts)

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
        """Return the kind of each row for the division, or say why the rows stay together."""
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
        self, kinds: RowKinds, reasons: Sequence[str | None], unsupported: Sequence[tuple[Requirement, ...]]
    ) -> RowSplit:
        """Divide the rows between the selected backend and the companion.

        :param reasons: for each of the kinds the property that the selected backend does not support, or None.
        :param unsupported: the requirements that the selected backend does not meet, and those of its companion.
        """
        split, widest = RowSplit.of(kinds, reasons, self.logits.device), self.facts.max_logprobs
        # Logprob columns as from a single sampler: if it supports logprobs, rows that did not ask get them too.
        staying, leaving = (None if LOGPROBS in missing else widest for missing in unsupported)
        return replace(
            split,
            staying=replace(split.staying, max_logprobs=staying),
            leaving=replace(split.leaving, max_logprobs=leaving),
        )

    def divided(self, split: RowSplit) -> tuple[Self, Self]:
        """Make the calls of the selected backend and of the companion, with a copy of the leaving rows."""
        leaving = self.logits.index_select(0, split.rows)
        return (
            type(self)(self.logits, split.for_chosen(self.metadata)),
            type(self)(leaving, split.for_companion(self.metadata)),
        )

    def merged(
        self, split: RowSplit, output: SamplerOutput, companion_output: SamplerOutput
    ) -> SamplerOutput:
        """Merge the outputs of the selected backend and of the companion, in the order of the rows."""
        return split.merged(output, companion_output, self.facts.logprobs_width(self.vocab_size))


class Draft(Sample):
    """A batch of logits for drafts, drawn from noise of separate streams: verifications use others."""

    __slots__ = ()

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata, draft=True)


_KERNEL_FACTS = attrgetter("any_greedy", "any_seeded", *dict.fromkeys(FACT_OF_COLUMN.values()))


def logits_signature(logits: Tensor, facts: BatchFacts) -> tuple[object, ...]:
    """Return the properties for the choice of kernels, the number of rows apart."""
    has_logprobs, has_given_ids = facts.max_logprobs is not None, facts.any_logprob_token_ids
    return logits.dtype, logits.shape[1], *_KERNEL_FACTS(facts), facts.filters, has_logprobs, has_given_ids
