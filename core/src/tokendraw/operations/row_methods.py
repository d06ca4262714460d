"""Draws, drafts, verifications and scores of rows: the methods for users, what ``load`` returns, and the proofs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw import speculative
from tokendraw._torch.tensors import is_capturing
from tokendraw._torch.untraced import untraced
from tokendraw.backends.description import Capabilities, DraftKind, Need, Operation
from tokendraw.calls.call import OutputCheck, check_type
from tokendraw.calls.provider import Provider, method
from tokendraw.calls.rows import (
    PEAK,
    LogitsForm,
    RowCall,
    check_logits,
    check_metadata,
    form_of,
    has_form,
    proof_logits,
    proof_output,
    proof_params,
)
from tokendraw.calls.warmup import Batches, CallGroups, checked_choices, checked_integer, warm_up
from tokendraw.errors import InvalidInputError, InvalidParameterError, PluginError, one_of
from tokendraw.operations.records import (
    DRAFT_KINDS,
    SAMPLE,
    SCORE,
    VERIFY,
    VERIFY_MODES,
    SamplerBackend,
    ScorerBackend,
    VerifierBackend,
    VerifyCapabilities,
    VerifyMode,
)
from tokendraw.output import PAD_TOKEN_ID, SamplerOutput, ScoreOutput, VerifyOutput
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams

# What users call.


def sample(logits: Tensor, metadata: SamplingMetadata, *, shard: None = None) -> RowCall:
    """Draw a token for each row.

    Waits for the device only where whoever draws does (``Capabilities.sync_free``), or where ``TOKENDRAW_DEBUG=1``
    has the call checked.

    A sampler that another one could replace draws its first batch of each kind (dtype, vocabulary, and which of
    greedy rows, seeds, filters and logprobs it may hold) from a copy of the logits, so that its successor finds
    them pristine. The copy takes the memory of the logits, and a read and a write of them, for that call; of kinds
    that :meth:`warmup` drew there is none. The logits are never modified.

    :param logits: [B, V] float32, bfloat16 or float16, any row stride.
    :param metadata: the parameters of the B rows, on the same device.
    :param shard: not taken any more: gather the logits of all ranks.
    :raises InvalidInputError: a ValueError, before anything is launched.
    :raises SamplerUnavailableError: the batch may hold rows that nobody here can serve, or whoever could has
        failed.
    :raises PluginError: what a sampler returned has the wrong type, shape, dtype or device, or
        ``TOKENDRAW_DEBUG=1`` found another fault; or a sampler raised what would end the program.
    """
    if shard is not None:
        raise TypeError(
            "'sample' takes no shard any more: gather the logits of all ranks, as with "
            "torch.distributed.all_gather_into_tensor, and draw from whole rows."
        )
    return RowCall(logits, metadata)


def draft(logits: Tensor, metadata: SamplingMetadata) -> RowCall:
    """Draw a draft for each row, from noise unused by verifications at the same seeds and positions.

    It is :meth:`tokendraw.Sampler.sample` otherwise, but that whoever verifies draws.
    """
    return RowCall(logits, metadata, is_draft=True)


def verify(
    target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, *, mode: VerifyMode = "rejection"
) -> Verify:
    """Verify the drafts of B requests: emit the accepted drafts and a token more, distributed as by the target.

    ``rejection`` accepts as many drafts as can be where it is known what they were drawn from. ``coupled`` accepts
    those that plain sampling draws at the same seeds and positions, so that the text is token for token what it
    would be without drafts; it looks at no draft's distribution. ``block`` judges the drafts of a request together
    (Sun et al., 2024, arXiv 2403.10444) and accepts at least as many as ``rejection`` on average. All leave the
    target's distribution as it is; ``block`` does so if the drafts of successive verifications share no noise: draw
    them without seeds, or with seeds of each verification's own.

    Waits for the device only where whoever verifies does (``Capabilities.sync_free``), or where
    ``TOKENDRAW_DEBUG=1`` has the call checked. A verifier that fails is replaced as in
    :meth:`tokendraw.Sampler.sample`, where it was given copies of the logits and of the drafts.

    :param target_logits: [L, V] float32, bfloat16 or float16, any row stride: of each request one row for every
        draft, in order, and its bonus row. Never modified.
    :param drafts: on the same device.
    :param metadata: one entry a request, with the positions of their first rows, or one a row, as
        ``row_index`` makes it; on the same device.
    :raises InvalidInputError: a ValueError, before anything is launched.
    :raises InvalidParameterError: a ValueError: there is no such mode.
    :raises SamplerUnavailableError: nobody here can verify this batch, or the sampler that was asked for verifies
        nothing.
    :raises PluginError: what a verifier returned has the wrong type, shape, dtype or device, or
        ``TOKENDRAW_DEBUG=1`` found another fault.
    """
    return Verify(target_logits, drafts, metadata, mode)


def score(logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> RowCall:
    """Compute the log-probability of a token for each row, without a draw.

    Rows of a prompt's prefill or of a completion, those of a teacher, or those that a trainer computes again: L
    rows at once, in parts where memory asks for it. Temperature, filters and ``logprobs_mode`` count as in
    :meth:`tokendraw.Sampler.sample`, whose log-probability of the token it drew is equal bit for bit where one
    plugin serves both. Seeds and positions are ignored. ``logprobs`` of a row is the number of best tokens beside
    its own; None counts as 0.

    Waits for the device only where whoever scores does, or where ``TOKENDRAW_DEBUG=1`` has the call checked.

    :param logits: [L, V] float32, bfloat16 or float16, any row stride. Never modified.
    :param token_ids: [L] integer on the same device: the token of each row. An id outside [0, V), such as the
        -100 of a label, is padding: its row has ``PAD_TOKEN_ID``, ``PAD_LOGPROB`` and rank 0 in the first column.
    :param metadata: the parameters of the L rows, on the same device.
    :raises InvalidInputError: a ValueError, before anything is launched.
    :raises SamplerUnavailableError: nobody here can score this batch.
    :raises PluginError: what a scorer returned has the wrong type, shape, dtype or device, or
        ``TOKENDRAW_DEBUG=1`` found another fault.
    """
    return RowCall(logits, metadata, token_ids)


# A verification.

_TENSORS = ("draft_token_ids", "cu_num_logits", "draft_probs", "draft_logits")
_Rows: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


class Verify(RowCall):
    """Logits [L, V] of the target, the drafts to verify, and parameters, an entry a request or a row."""

    __slots__ = ("drafts", "mode")

    hint_field: ClassVar[str] = "SamplingMetadata.facts or Drafts"

    def __init__(
        self, target_logits: Tensor, drafts: Drafts, metadata: SamplingMetadata, mode: VerifyMode
    ) -> None:
        super().__init__(target_logits, metadata)
        self.drafts = drafts
        self.mode = mode

    def check(self, device: torch.device, need: Need) -> None:
        target_logits, drafts, metadata = self.logits, self.drafts, self.metadata
        check_logits("target_logits", target_logits, device)
        mend = "Pass Drafts.from_lists(draft_token_ids, device=...)."
        check_type("drafts", drafts, Drafts, mend)
        check_metadata("target_logits", target_logits, metadata, need)
        if self.mode not in VERIFY_MODES:
            raise InvalidParameterError(
                f"'mode' needs {one_of(VERIFY_MODES)}, found {self.mode!r}. Pass one of these."
            )
        drafts.check(target_logits)
        rows, found = target_logits.shape[0], metadata.num_rows
        if found not in (None, rows, drafts.num_requests):
            raise InvalidInputError(
                f"'metadata' needs one entry a request, {drafts.num_requests}, or one a row of 'target_logits', "
                f"{rows}, found {found}."
            )

    def check_values(self) -> None:
        super().check_values()
        self.drafts.check_values()

    def tensors(self) -> dict[str, Tensor]:
        of_drafts = {name: getattr(self.drafts, name) for name in _TENSORS}
        given = {name: tensor for name, tensor in of_drafts.items() if tensor is not None}
        return {"target_logits": self.logits, **given}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        fields: dict[str, Any] = {name: tensors[name] for name in _TENSORS if name in tensors}
        drafts = replace(self.drafts, **fields)
        return type(self)(tensors["target_logits"], drafts, self.metadata, self.mode)

    def signature(self) -> Hashable:
        drafts = self.drafts
        ids, offsets, logits = drafts.draft_token_ids, drafts.cu_num_logits, drafts.draft_logits
        dtypes = ids.dtype, offsets.dtype, None if logits is None else logits.dtype
        return super().signature(), self.mode, drafts.kind, ids.dim(), dtypes, drafts.max_drafts.bit_length()

    @property
    def num_rows(self) -> int:
        return 0

    def cached_check(self, key: object) -> OutputCheck | None:
        if type(self.drafts) is not Drafts or type(self.metadata) is not SamplingMetadata:
            return None
        # The first is the memo of the metadata.
        checked: tuple[dict[Hashable, Any], VerifyMode, LogitsForm, OutputCheck] | None
        checked = self.drafts.memo.get(key)
        if checked is None or checked[0] is not self.metadata.memo or checked[1] != self.mode:
            return None
        return checked[3] if has_form(self.logits, checked[2]) else None

    def cache_check(self, key: object, check: OutputCheck) -> None:
        drafts = self.drafts
        if drafts.num_rows is None and drafts.cu_num_logits.is_cpu:
            return  # their values are checked in every call
        drafts.memo[key] = self.metadata.memo, self.mode, form_of(self.logits), check

    def run(self, backend: Any) -> Any:
        metadata = by_row(self.metadata, self.drafts, self.logits.shape[0])
        return backend.verify(self.logits, self.drafts, metadata, mode=self.mode)

    def output_check(self, need: Need) -> OutputCheck:
        requests = self.drafts.num_requests
        tokens = "token_ids", (requests, self.drafts.max_drafts + 1), torch.int64
        others = ("num_accepted", (requests,), torch.int32), ("valid", (requests,), torch.bool)
        return self.output_form(VerifyOutput, (tokens, *others), need).wrong

    def wrong_tokens(self, output: VerifyOutput) -> str | None:
        drafts, vocab_size = self.drafts, self.vocab_size
        first, ids = drafts.cu_num_logits.tolist(), drafts.draft_token_ids.tolist()
        chains = zip(output.token_ids.tolist(), output.num_accepted.tolist(), strict=True)
        for b, (tokens, accepted) in enumerate(chains):
            count = first[b + 1] - first[b] - 1
            if not 0 <= accepted <= count:
                return (
                    f"num_accepted in [0, {count}], found {accepted} for request {b} of {drafts.num_requests}"
                )
            start = first[b] - b
            proposed = ids[b] if drafts.draft_token_ids.dim() == 2 else ids[start : start + accepted]
            for token, draft_id in zip(tokens[:accepted], proposed, strict=False):
                if token != draft_id:
                    return f"the accepted drafts, found token {token} for draft {draft_id} of request {b}"
            for i, token in enumerate(tokens):
                if i <= accepted and not 0 <= token < vocab_size:
                    return (
                        f"token_ids in [0, {vocab_size}) up to the last token of a request, found {token} as token "
                        f"{i} of the {accepted + 1} of request {b}"
                    )
                if i > accepted and token != PAD_TOKEN_ID:
                    return (
                        f"token_ids {PAD_TOKEN_ID} behind the last token of a request, found {token} behind the "
                        f"{accepted + 1} of request {b}"
                    )
        return None


def by_row(metadata: SamplingMetadata, drafts: Drafts, rows: int) -> SamplingMetadata:
    """Make metadata of rows, also from metadata of requests with the position of each request's first row."""
    if metadata.num_rows in (None, rows):
        return metadata
    request, offset, steps = _rows_of_requests(drafts, rows)
    positions = metadata.positions
    if positions is not None and steps is not None:
        positions = torch.add(positions.unsqueeze(1), steps).view(-1)  # one launch
    elif positions is not None:
        positions = positions.index_select(0, request)
        positions = (positions if positions.dtype is torch.int64 else positions.to(torch.int64)).add_(offset)
    slot = metadata.row_index
    return metadata.for_rows(request if slot is None else slot.index_select(0, request), positions)


def _rows_of_requests(drafts: Drafts, rows: int) -> _Rows:
    """Find the request of each row, and its index within the request: [L] each, computed once for unchanged offsets.

    Inside of a CUDA graph both are computed, so that replays follow changes of ``cu_num_logits``.

    :returns: and the steps of any request, [K + 1] int64, where all requests have K drafts.
    """
    offsets = drafts.cu_num_logits
    if is_capturing() or offsets.is_inference():  # torch does not count changes of inference tensors
        return *speculative.rows_of_requests(offsets, rows), None
    stream = torch.cuda.current_stream(offsets.device) if offsets.is_cuda else None
    state: Hashable = rows, offsets._version, stream
    known: tuple[Hashable, _Rows] | None = drafts.memo.get("rows of requests")
    if known is None or known[0] != state:
        width, steps = drafts.max_drafts + 1, None
        if drafts.is_uniform and rows == drafts.num_requests * width:
            steps = torch.arange(width, device=offsets.device)
        known = state, (*speculative.rows_of_requests(offsets, rows), steps)
        drafts.memo["rows of requests"] = known
    return known[1]


# What ``load`` returns.


class SampleProvider(Provider):
    """Draws a token for each row of logits."""

    _operations: ClassVar[tuple[Operation, ...]] = (SAMPLE,)

    sample = method(SAMPLE, sample, SamplerOutput)

    @untraced
    def warmup(self, vocab_size: int, *, progress: bool | None = None, **options: Any) -> float:
        """Draw from made-up batches, as :meth:`tokendraw.Sampler.warmup` does.

        :param options: arguments of that method about logits and their parameters.
        """
        drawn = partial(Batches(self.device, vocab_size, **options).drawn, "batches", RowCall)
        return warm_up(self._negotiator, [(SAMPLE, drawn)], progress=progress)


class VerifyProvider(Provider):
    """Draws and verifies the drafts of speculative decoding."""

    _operations: ClassVar[tuple[Operation, ...]] = (VERIFY,)

    verify = method(VERIFY, verify, VerifyOutput)
    draft = method(VERIFY, draft, SamplerOutput)

    @untraced
    def warmup(
        self,
        vocab_size: int,
        *,
        max_drafts: int,
        verify_modes: Iterable[VerifyMode] = ("rejection",),
        draft_kinds: Iterable[DraftKind] = ("logits",),
        progress: bool | None = None,
        **options: Any,
    ) -> float:
        """Draw and verify made-up drafts, as :meth:`tokendraw.Sampler.warmup` does.

        :param options: other arguments of that method.
        """
        verified = verified_by(
            Batches(self.device, vocab_size, **options), max_drafts, verify_modes, draft_kinds
        )
        return warm_up(self._negotiator, [(VERIFY, verified)], progress=progress)


def verified_by(
    batches: Batches, max_drafts: int, verify_modes: Iterable[VerifyMode], draft_kinds: Iterable[DraftKind]
) -> CallGroups:
    """Make up drafts and verifications of batches, from arguments of :meth:`tokendraw.Sampler.warmup`."""
    max_drafts = checked_integer("max_drafts", max_drafts, 1)
    modes = checked_choices("verify_modes", verify_modes, "modes", VERIFY_MODES)
    kinds = checked_choices("draft_kinds", draft_kinds, "kinds", DRAFT_KINDS)
    # ``coupled`` reads no distribution.
    ways = [(mode, kind) for mode in modes for kind in (kinds[:1] if mode == "coupled" else kinds)]
    return partial(batches.verified, Verify, max_drafts, ways)


class ScoreProvider(Provider):
    """Computes log-probabilities of given tokens."""

    _operations: ClassVar[tuple[Operation, ...]] = (SCORE,)

    score = method(SCORE, score, ScoreOutput)


# Proofs.


def _prove_sampler(
    backend: SamplerBackend, capabilities: Capabilities, device: torch.device, need: Need
) -> None:
    """Draw from two rows: all mass on a middle token, and half of it on the first and last token each."""
    logits = proof_logits(2, capabilities, device, need)
    vocab_size = logits.shape[1]
    expected = [{vocab_size // 2}, {0, vocab_size - 1}]
    for row, tokens in enumerate(expected):
        logits[row, sorted(tokens)] = PEAK
    pristine = logits.clone()
    params = [proof_params(capabilities, need)] * 2  # equal, so that a scalar filter can serve both
    metadata = SamplingMetadata.from_params(params, device=device)
    output = proof_output(RowCall(logits, metadata), backend, need)
    for row, (token, allowed) in enumerate(zip(output.token_ids.tolist(), expected, strict=True)):
        if token not in allowed:
            raise PluginError(
                f"the proof draw needs token {' or '.join(map(str, sorted(allowed)))} in row {row} "
                f"of {vocab_size} logits, found {token}"
            )
    if capabilities.valid_flag and not all(output.valid.tolist()):
        raise PluginError(f"the proof draw needs two valid rows, found valid {output.valid.tolist()}")
    if not torch.equal(logits, pristine):
        raise PluginError("the proof draw needs its logits unmodified, found them changed")


def _prove_verifier(
    backend: VerifierBackend, capabilities: VerifyCapabilities, device: torch.device, need: Need
) -> None:
    """Verify the drafts of two requests: a certain token, and an impossible token."""
    logits = proof_logits(4, capabilities, device, need)
    vocab_size = logits.shape[1]
    peak = vocab_size // 2
    logits[:, peak] = PEAK
    probs = torch.zeros(2, vocab_size, device=device, dtype=torch.float32)
    probs[0, peak] = probs[1, 0] = 1.0
    kind = "probs" if "probs" in capabilities.draft_kinds else (*capabilities.draft_kinds, "chosen")[0]
    distributions = {
        "probs": {"draft_probs": probs},
        "logits": {"draft_logits": probs.mul(PEAK).to(logits.dtype)},
    }
    drafts = Drafts.from_lists([[peak], [0]], device=device, **distributions.get(kind, {}))
    metadata = SamplingMetadata.from_params([proof_params(capabilities, need)] * 4, device=device)
    mode = (*capabilities.verify_modes, "rejection")[0]
    output = proof_output(verify(logits, drafts, metadata, mode=mode), backend, need)
    found = (output.token_ids.tolist(), output.num_accepted.tolist())
    if found != ([[peak, peak], [peak, -1]], [1, 0]):
        raise PluginError(
            f"the proof draw needs the tokens {[[peak, peak], [peak, -1]]} of {vocab_size} logits and [1, 0] accepted, "
            f"found {found[0]} and {found[1]}"
        )


def _prove_scorer(
    backend: ScorerBackend, capabilities: Capabilities, device: torch.device, need: Need
) -> None:
    """Score a certain token, and one of two equally likely tokens."""
    logits = proof_logits(2, capabilities, device, need)
    peak = logits.shape[1] // 2
    logits[:, peak] = PEAK
    logits[1, 0] = PEAK
    token_ids = torch.tensor([peak, 0], device=device, dtype=torch.int64)
    metadata = SamplingMetadata.from_params([SamplingParams()] * 2, device=device)
    output = proof_output(score(logits, token_ids, metadata), backend, need)
    expected_values = [0.0, math.log(2.0)]
    found_values = output.entropy.tolist()
    if need.logprobs_mode.endswith("logprobs"):
        expected_values += [0.0, -math.log(2.0)]
        found_values += output.logprobs.logprobs[:, 0].tolist()
    for expected, found in zip(expected_values, found_values, strict=True):
        if not abs(expected - found) <= 1e-3:
            raise PluginError(
                f"the proof score needs entropies and log-probabilities {expected_values}, found {found_values}"
            )


class _Implementation(NamedTuple):
    """What a module of an operation holds, see :class:`tokendraw.plugin.Operation`."""

    CALLS: Mapping[str, Any]
    PROVIDER: type[Provider]
    prove: Any


SAMPLING = _Implementation({"sample": sample}, SampleProvider, _prove_sampler)
VERIFICATION = _Implementation({"verify": verify, "draft": draft}, VerifyProvider, _prove_verifier)
SCORING = _Implementation({"score": score}, ScoreProvider, _prove_scorer)
