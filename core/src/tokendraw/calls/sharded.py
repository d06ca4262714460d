"""Calls that draw from logits of which each rank of a group holds some columns."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from tokendraw.backends.description.capabilities import Capabilities, Need
from tokendraw.calls import input_checks
from tokendraw.calls.call import Call, OutputCheck
from tokendraw.calls.drawing import Sample
from tokendraw.errors.exceptions import InvalidInputError, TokendrawError
from tokendraw.errors.formatting import type_name
from tokendraw.parameters.batch_facts import BatchFacts
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel.agreement import agree
from tokendraw.vocab_parallel.shard import Agreed, VocabShard


def sample_call(logits: Tensor, metadata: SamplingMetadata, *, shard: VocabShard | None = None) -> Call:
    """Make the call of ``sample``."""
    return Sample(logits, metadata) if shard is None else ShardedSample(logits, metadata, shard)


class ShardedSample(Sample):
    """The columns [B, n] of this rank, and the parameters of the rows, the same on every rank."""

    __slots__ = ("shard",)

    is_collective: ClassVar[bool] = True

    def __init__(self, logits: Tensor, metadata: SamplingMetadata, shard: VocabShard) -> None:
        super().__init__(logits, metadata)
        self.shard = shard

    def join(self, provider: str, need: Need, wrong: TokendrawError | None) -> None:
        if wrong is not None and not isinstance(self.shard, VocabShard):
            raise wrong
        agree(self.shard, self.logits, self.metadata, need, provider, wrong)

    def check(self, device: torch.device, need: Need) -> None:
        if not isinstance(self.shard, VocabShard):
            raise InvalidInputError(
                f"'shard' needs a tokendraw.VocabShard, found {type_name(self.shard)}. "
                "Pass VocabShard(start, vocab_size)."
            )
        input_checks.check_logits("logits", self.logits, device, least_columns=0)
        input_checks.check_batch("logits", self.logits, self.metadata, need, self.shard.vocab_size)

    def lacking(self, capabilities: Capabilities, rows: BatchFacts | None = None) -> str | None:
        if not capabilities.vocab_parallel:
            return "a vocabulary that is split over ranks"
        return super().lacking(capabilities, rows)

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata, shard=self.shard)

    @property
    def vocab_size(self) -> int:
        """V of all ranks together."""
        return self.shard.vocab_size

    def recall(self, key: object) -> OutputCheck | None:
        if type(self.metadata) is not SamplingMetadata or type(self.shard) is not VocabShard:
            return None
        known: _Known | None = self.metadata.memo.get((key, _MEMO))
        if known is None or known.agreed() is not self.shard.agreed:
            return None
        return known.check if input_checks.has_form(self.logits, known.form) else None

    def remember(self, key: object, check: OutputCheck) -> None:
        form = input_checks.form_of(self.logits)
        self.metadata.memo[key, _MEMO] = _Known(form, check, weakref.ref(self.shard.agreed))


class _Known(NamedTuple):
    """Facts about a call that its metadata remember."""

    form: input_checks.LogitsForm
    check: OutputCheck
    agreed: weakref.ref[Agreed]
    """Agreement of the ranks of its shard, which metadata do not keep alive."""


_MEMO: Final = "checked over ranks"
