"""The call of ``sample`` over ranks with some columns of the logits each, and the dispatch of the call.

All ranks make the call together. So the selected backend serves all of it on every rank: with a companion, or a
successor after a failure, the ranks would part.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.forked import reseed_if_due
from tokendraw.backends.description.capabilities import Need
from tokendraw.calls import input_checks
from tokendraw.calls.call import OutputCheck
from tokendraw.calls.dispatcher import Dispatcher
from tokendraw.calls.drawing import Sample
from tokendraw.calls.fallback import CallFailedError
from tokendraw.calls.routing import undeclared_class
from tokendraw.calls.selection import Selection
from tokendraw.errors.exceptions import InvalidInputError, SamplerUnavailableError, TokendrawError
from tokendraw.errors.formatting import type_name
from tokendraw.errors.install_commands import NATIVE
from tokendraw.output import SamplerOutput
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel.agreement import agree
from tokendraw.vocab_parallel.shard import Agreed, VocabShard


class ShardedSample(Sample):
    """The columns [B, n] of a rank, and the parameters of the rows, equal on every rank."""

    __slots__ = ("shard",)

    is_sharded: ClassVar[bool] = True

    def __init__(self, logits: Tensor, metadata: SamplingMetadata, shard: VocabShard) -> None:
        super().__init__(logits, metadata)
        self.shard = shard

    def agree(self, backend: str, need: Need, error: TokendrawError | None) -> None:
        """Compare the calls of all ranks, before the run.

        :param backend: name of the backend that serves it on this rank.
        :param error: error of the call on this rank.
        :raises TokendrawError: the calls differ, or one of them has an error.
        """
        if error is not None and not isinstance(self.shard, VocabShard):
            raise error
        agree(self.shard, self.logits, self.metadata, need, backend, error)

    def check(self, device: torch.device, need: Need) -> None:
        if not isinstance(self.shard, VocabShard):
            raise InvalidInputError(
                f"'shard' needs a tokendraw.VocabShard, found {type_name(self.shard)}. "
                "Pass VocabShard(start, vocab_size)."
            )
        input_checks.check_logits("logits", self.logits, device, least_columns=0)
        input_checks.check_batch("logits", self.logits, self.metadata, need, self.shard.vocab_size)

    def run(self, backend: Any) -> Any:
        return backend.sample(self.logits, self.metadata, shard=self.shard)

    @property
    def vocab_size(self) -> int:
        return self.shard.vocab_size

    def cached_check(self, key: object) -> OutputCheck | None:
        if type(self.metadata) is not SamplingMetadata or type(self.shard) is not VocabShard:
            return None
        checked: _CheckedCall | None = self.metadata.memo.get((key, _MEMO))
        if checked is None or checked.agreed() is not self.shard.agreed:
            return None
        return checked.check if input_checks.has_form(self.logits, checked.form) else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        form = input_checks.form_of(self.logits)
        self.metadata.memo[key, _MEMO] = _CheckedCall(form, check, weakref.ref(self.shard.agreed))


class _CheckedCall(NamedTuple):
    """Facts about a checked call, cached with the metadata."""

    form: input_checks.LogitsForm
    check: OutputCheck
    agreed: weakref.ref[Agreed]
    """Agreement of the ranks of the shard; the metadata do not keep it alive."""


_MEMO: Final = "checked over ranks"


def sample_call(logits: Tensor, metadata: SamplingMetadata, *, shard: VocabShard | None = None) -> Sample:
    """Make the call of ``sample``."""
    return Sample(logits, metadata) if shard is None else ShardedSample(logits, metadata, shard)


def dispatch_over_ranks(dispatcher: Dispatcher, call: ShardedSample) -> SamplerOutput:
    """Dispatch a joint call of all ranks. An error of a rank is raised on every rank; no rank waits for another.

    :raises InvalidInputError: before anything is launched.
    :raises SamplerUnavailableError: the selected backend does not support a property that the call may have.
    :raises PluginError: as of :meth:`tokendraw.calls.dispatcher.Dispatcher.dispatch`.
    """
    selection, negotiator = dispatcher.selection, dispatcher.negotiator
    backend = selection.backend
    reseed_if_due()
    check = call.cached_check(selection.key)
    is_new = check is None
    if check is None:
        error = None
        try:
            dispatcher.validate(call)
            _check_supported(selection, call)
        except TokendrawError as refusal:
            error = refusal
        call.agree(backend.name, negotiator.need, error)
        check = call.output_check(negotiator.need)
    try:
        output: SamplerOutput = dispatcher.run(backend, call, check)
    except CallFailedError as failed:
        failure = failed
    else:
        if is_new and not negotiator.debug:
            call.cache_check(selection.key, check)
        negotiator.count(backend.name, call.num_rows)
        return output
    raise failure.visible_error


def _check_supported(selection: Selection, call: ShardedSample) -> None:
    """Refuse a call beyond the selected backend.

    :raises SamplerUnavailableError: names the property that the backend does not support.
    """
    backend = selection.backend
    undeclared, reason = backend.undeclared_class(call), backend.reason_against(call)
    if undeclared is not None:
        raise undeclared_class(undeclared, backend.name)
    if reason is not None:
        is_native_here = any(decision.name == "native" for decision in selection.resolution.decisions)
        command = "" if is_native_here else f" ({NATIVE})"
        raise SamplerUnavailableError(
            f"'{backend.name}' cannot serve {reason}, and no companion serves a part of a call that several "
            f"ranks make together. Load a sampler that can, with tokendraw.Need(vocab_parallel=True){command}."
        )
