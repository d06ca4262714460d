"""The call of ``sample`` over ranks with some columns of the logits each, and the dispatch of the call.

All ranks make the call together. So the selected backend serves all of it on every rank: with a companion, or a
successor after a failure, the ranks would part.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tokendraw._torch.forked import reseed_if_due
from tokendraw.backends.description.capabilities import Need
from tokendraw.backends.description.operation import Operation
from tokendraw.calls import input_checks
from tokendraw.calls.call import OutputCheck
from tokendraw.calls.dispatch import run, validate
from tokendraw.calls.drawing import Sample
from tokendraw.calls.fallback import CallFailedError
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.selection import Selection
from tokendraw.errors.exceptions import InvalidInputError, SamplerUnavailableError, TokendrawError
from tokendraw.errors.install_commands import NATIVE
from tokendraw.output import SamplerOutput
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel.agreement import agree
from tokendraw.vocab_parallel.shard import VocabShard


class ShardedSample(Sample):
    """The columns [B, n] of a rank, and the parameters of the rows, equal on every rank."""

    __slots__ = ("shard",)

    is_sharded: ClassVar[bool] = True

    def __init__(self, logits: Tensor, metadata: SamplingMetadata, shard: VocabShard) -> None:
        super().__init__(logits, metadata)
        self.shard = shard

    def agree(self, backend: str, need: Need, error: TokendrawError | None) -> None:
        """Compare the calls of all ranks before the run; ``error`` is that of the call on this rank."""
        if error is not None and not isinstance(self.shard, VocabShard):
            raise error
        agree(self.shard, self.logits, self.metadata, need, backend, error)

    def check(self, device: torch.device, need: Need) -> None:
        input_checks.check_type("shard", self.shard, VocabShard, "Pass VocabShard(start, vocab_size).")
        input_checks.check_logits("logits", self.logits, device, least_columns=0)
        input_checks.check_batch("logits", self.logits, self.metadata, need, self.shard.vocab_size)
        facts = self.metadata.facts
        for name, is_asked, instead in (
            ("'logprob_token_ids'", facts.any_logprob_token_ids, "ask for the best tokens with logprobs="),
            ("'typical_p'", facts.any_typical_p, "use min_p, top_k and top_p"),
            ("'xtc_probability'", facts.any_xtc, "use min_p, top_k and top_p"),
            ("'filter_order' temperature_last", facts.any_temperature_last, "use top_k_first or joint"),
        ):
            if is_asked:
                raise InvalidInputError(
                    f"{name} needs all columns of the logits on one device, found a shard of the vocabulary. "
                    f"Gather the logits, or {instead}."
                )

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata, shard=self.shard)

    @property
    def vocab_size(self) -> int:
        return self.shard.vocab_size

    def cached_check(self, key: object) -> OutputCheck | None:
        is_shard = type(self.shard) is VocabShard
        return super().cached_check((key, self.shard.agreed.key)) if is_shard else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        super().cache_check((key, self.shard.agreed.key), check)


def sample_call(logits: Tensor, metadata: SamplingMetadata, *, shard: VocabShard | None = None) -> Sample:
    """Make the call of ``sample``."""
    return Sample(logits, metadata) if shard is None else ShardedSample(logits, metadata, shard)


def dispatch_over_ranks(negotiator: Negotiator, operation: Operation, call: ShardedSample) -> SamplerOutput:
    """Dispatch a joint call of all ranks. An error of a rank is raised on every rank; no rank waits for another.

    Raises as :func:`tokendraw.calls.dispatch.dispatch` does.
    """
    selection = negotiator.select(operation)
    backend = selection.backend
    reseed_if_due()
    check = call.cached_check(selection.key)
    is_new = check is None
    if check is None:
        error = None
        try:
            validate(negotiator, call)
            _check_supported(selection, call)
        except TokendrawError as refusal:
            error = refusal
        call.agree(backend.name, negotiator.need, error)
        check = call.output_check(negotiator.need)
    try:
        output: SamplerOutput = run(negotiator, backend, call, check)
    except CallFailedError as failed:
        failure = failed
    else:
        if is_new and not negotiator.debug:
            call.cache_check(selection.key, check)
        negotiator.count(backend.name, call.num_rows)
        return output
    raise failure.visible_error


def _check_supported(selection: Selection, call: ShardedSample) -> None:
    """Refuse a call with a property that the selected backend does not support."""
    backend = selection.backend
    reason = backend.reason_against(call)
    if reason is not None:
        is_native_here = any(decision.name == "native" for decision in selection.resolution.decisions)
        command = "" if is_native_here else f" ({NATIVE})"
        raise SamplerUnavailableError(
            f"'{backend.name}' cannot serve {reason}, and no companion serves a part of a call that several "
            f"ranks make together. Load a sampler that can, with tokendraw.Need(vocab_parallel=True){command}."
        )
