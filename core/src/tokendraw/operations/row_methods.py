"""Draws, drafts, verifications and scores of rows: the methods for users, what ``load`` returns, and the proofs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from tokendraw._torch.importing import untraced
from tokendraw._torch.tensors import is_capturing
from tokendraw.backends.description import Capabilities, DraftKind, Need, Operation
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.call import OutputCheck, check_type
from tokendraw.calls.dispatch import Provider, provider_method
from tokendraw.calls.rows import (
    PEAK,
    LogitsForm,
    RowCall,
    check_logits,
    check_metadata,
    has_form,
    proof_logits,
    proof_output,
    proof_params,
)
from tokendraw.calls.warmup import Batches, checked_choices, checked_integer, warm_up
from tokendraw.errors import InvalidInputError, InvalidParameterError, PluginError, one_of
from tokendraw.operations import (
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
from tokendraw.speculative import rows_of_requests

# What users call.


def sample(logits: Tensor, metadata: SamplingMetadata) -> RowCall:
    """Draw a token for each row.

    Waits for the device only where the sampler does (``Capabilities.sync_free``), or with ``TOKENDRAW_DEBUG=1``.

    A sampler that another one could replace draws its first batch of each kind (dtype, vocabulary, and which of greedy
    rows, seeds, filters and logprobs it may hold) from a copy of the logits, which its successor finds pristine:
    memory, a read and a write more, unless :meth:`warmup` drew that kind. The logits are never modified.

    :param logits: [B, V] float32, bfloat16 or float16, any row stride.
    :param metadata: the parameters of the B rows, on the same device.
    :raises InvalidInputError: a ValueError, before anything is launched.
    :raises SamplerUnavailableError: no sampler here serves rows that the batch may hold, or the one that does failed.
    :raises PluginError: an output has the wrong type, shape, dtype or device, ``TOKENDRAW_DEBUG=1`` found another
        fault, or a sampler raised what would end the program.
    """
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
    those that plain sampling draws at the same seeds and positions, so that the text is token for token that without
    drafts; it looks at no draft's distribution. ``block`` judges the drafts of a request together (Sun et al., 2024,
    arXiv 2403.10444) and accepts at least as many as ``rejection`` on average. All leave the target's distribution as
    it is; ``block`` if the drafts of successive verifications share no noise: without seeds, or with seeds of each one.

    Waits, raises, and replaces a verifier that fails as :meth:`tokendraw.Sampler.sample` does.

    :param target_logits: [L, V] float32, bfloat16 or float16, any row stride: of each request one row for every draft,
        in order, and its bonus row. Never modified.
    :param drafts: on the same device.
    :param metadata: on the same device: one entry a request, with the positions of first rows, or one a row.
    :raises InvalidParameterError: a ValueError: there is no such mode.
    :raises SamplerUnavailableError: no plugin here, or not the one that was asked for, verifies this batch.
    """
    return Verify(target_logits, drafts, metadata, mode)


def score(logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> RowCall:
    """Compute the log-probability of a token for each row, without a draw.

    Rows of a prompt's prefill or of a completion, those of a teacher, or those that a trainer computes again: L rows at
    once, in parts where memory asks for it. Temperature, filters and ``logprobs_mode`` count as in
    :meth:`tokendraw.Sampler.sample`, whose log-probability of the token it drew is equal bit for bit where one plugin
        serves both. Seeds and positions are ignored; ``logprobs`` None counts as 0. Waits and raises as a draw does.

    :param logits: [L, V] float32, bfloat16 or float16, any row stride. Never modified.
    :param token_ids: [L] integer on the same device: the token of each row. An id outside [0, V), such as the -100 of a
        label, is padding: its row has ``PAD_TOKEN_ID``, ``PAD_LOGPROB`` and rank 0 in the first column.
    :param metadata: the parameters of the L rows, on the same device.
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
            needed = one_of(VERIFY_MODES)
            raise InvalidParameterError(f"'mode' needs {needed}, found {self.mode!r}. Pass one of these.")
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
        drafts, logits = self.drafts, self.logits
        if drafts.num_rows is None and drafts.cu_num_logits.is_cpu:
            return  # their values are checked in every call
        form = logits.shape, logits.dtype, logits.device
        drafts.memo[key] = self.metadata.memo, self.mode, form, check

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
                of_all = f"request {b} of {drafts.num_requests}"
                return f"num_accepted in [0, {count}], found {accepted} for {of_all}"
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
        return *rows_of_requests(offsets, rows), None
    stream = torch.cuda.current_stream(offsets.device) if offsets.is_cuda else None
    state: Hashable = rows, offsets._version, stream
    known: tuple[Hashable, _Rows] | None = drafts.memo.get("rows of requests")
    if known is None or known[0] != state:
        width, steps = drafts.max_drafts + 1, None
        if drafts.is_uniform and rows == drafts.num_requests * width:
            steps = torch.arange(width, device=offsets.device)
        known = state, (*rows_of_requests(offsets, rows), steps)
        drafts.memo["rows of requests"] = known
    return known[1]


# What ``load`` returns.


class _RowProvider(Provider):
    @untraced
    def warmup(
        self,
        vocab_size: int,
        *,
        dtypes: Iterable[torch.dtype],
        batch_sizes: Iterable[int] = (1, 64),
        row_stride: int | None = None,
        seeds: bool = True,
        logprobs: Iterable[int] = (5,),
        row_index: bool = False,
        metadata: Iterable[SamplingMetadata] | None = None,
        max_drafts: int | None = None,
        verify_modes: Iterable[VerifyMode] = ("rejection",),
        draft_kinds: Iterable[DraftKind] = ("logits",),
        progress: bool | None = None,
    ) -> float:
        """Draw from made-up batches, so that no request waits for the compilation or load of a kernel.

        On a CPU nothing is compiled: the arguments are checked, who verifies is negotiated where ``max_drafts`` is
        given, and nothing is drawn. The log of ``tokendraw`` says so.

        Goes through :meth:`sample` with every kind of batch that :meth:`SamplingMetadata.from_params` makes: each
        filter, no filter, the order ``joint``; greedy, seeded, unseeded and mixed rows; with and without positions and
        logprobs. Kinds that nobody here serves are left out. A sampler whose call raises is replaced as in
        :meth:`sample`, and its successor draws all of them. Torch's random state is left alone. From Python 3.12 on up
        to 64 threads draw batches at once, so that kernels are compiled side by side. Returns when the device is done.

        With ``max_drafts`` the same kinds go through :meth:`draft`, and those without ``row_index``, one entry a
        request, through :meth:`verify` with K drafts a request, their ids [L - B]. The kinds without seeds, and those
        with one in every row, are also verified with ids [B, K], without drafts and, where K is 8 or more, with fewer
        by powers of two. Ids are int64; drafts' logits are as the target's, their probabilities float32, one row behind
        the other; ``coupled`` gets the first of ``draft_kinds``.

        :param vocab_size: V of the logits to come.
        :param dtypes: of the logits to come.
        :param batch_sizes: numbers of rows; in a verification of requests, with K + 1 rows of the target and K of
            drafts each. One is enough where a sampler has one way for all of them; give the largest too where it may
            choose by them. All batches read one memory of the largest logits [B, V]; the first may copy the smallest.
        :param row_stride: of the logits in elements, where their rows are padded; None: V.
        :param seeds: whether seeds and positions may come.
        :param logprobs: values of ``SamplingParams.logprobs`` that may come; empty: none.
        :param row_index: whether the parameters of some batches come by request slot.
        :param metadata: batches to draw in place of all those kinds, such as those of an engine that keeps its
            parameters in tensors of its own dtypes. Each brings its number of rows, or of requests to verify.
        :param max_drafts: K, the most drafts that a request may have; None: nothing is verified.
        :param verify_modes: modes of the verifications to come.
        :param draft_kinds: what they will be given of the drafts: ``probs``, ``logits`` or, with neither, ``chosen``.
        :param progress: whether a line on stderr shows how far it is; None: if stderr is a terminal.
        :returns: the seconds that it took; 0.0 on a CPU.
        :raises InvalidInputError: a ValueError that names the argument; or a CUDA graph is being captured.
        :raises SamplerUnavailableError: nobody here serves the plainest batch, or nobody verifies.
        """
        batches = Batches(
            self.device,
            vocab_size,
            dtypes=dtypes,
            batch_sizes=batch_sizes,
            row_stride=row_stride,
            seeds=seeds,
            logprobs=logprobs,
            row_index=row_index,
            metadata=metadata,
        )
        drawn = partial(batches.drawn, "batches", RowCall)
        most = checked_integer("max_drafts", 1 if max_drafts is None else max_drafts, 1)
        modes = checked_choices("verify_modes", verify_modes, "modes", VERIFY_MODES)
        kinds = checked_choices("draft_kinds", draft_kinds, "kinds", DRAFT_KINDS)
        # ``coupled`` reads no distribution.
        ways = [(mode, kind) for mode in modes for kind in (kinds[:1] if mode == "coupled" else kinds)]
        verified = partial(batches.verified, Verify, most, ways)
        warmups = ((SAMPLE, drawn), *([] if max_drafts is None else [(VERIFY, verified)]))
        own = [(operation, groups) for operation, groups in warmups if operation in self._operations]
        return warm_up(self._negotiator, own, progress=progress)


class SampleProvider(_RowProvider):
    """Draws a token for each row of logits."""

    _operations: ClassVar[tuple[Operation, ...]] = (SAMPLE,)

    sample = provider_method(SAMPLE, sample, SamplerOutput)


class VerifyProvider(_RowProvider):
    """Draws and verifies the drafts of speculative decoding."""

    _operations: ClassVar[tuple[Operation, ...]] = (VERIFY,)

    verify = provider_method(VERIFY, verify, VerifyOutput)
    draft = provider_method(VERIFY, draft, SamplerOutput)


class ScoreProvider(Provider):
    """Computes log-probabilities of given tokens."""

    _operations: ClassVar[tuple[Operation, ...]] = (SCORE,)

    score = provider_method(SCORE, score, ScoreOutput)


class Sampler(SampleProvider, VerifyProvider, ScoreProvider):
    """A negotiated, built and proven sampler, made by :func:`tokendraw.load_sampler`.

    Where tokendraw chose it by default and it fails the first batch of a kind (it raises, or its output has the wrong
    form), the next best one draws that batch and, if it can, all that follow; a
    :class:`tokendraw.SamplerFallbackWarning` says so once. The error is raised, and no sampler replaced, where no other
    one can draw the batch either, where the user asked for a sampler, while a CUDA graph is captured, where the error
    says nothing against it, as ``torch.OutOfMemoryError``, and for later batches, which are drawn without a copy.

    Several threads may call it at once.
    """

    _operations = (SAMPLE, VERIFY, SCORE)

    def __repr__(self) -> str:
        return f"<tokendraw.Sampler {self.name!r} on {self.device}>"

    @property
    @untraced
    def verify_resolution(self) -> Resolution:
        """Decisions on every candidate for verification, negotiated at the first draft or verification.

        :raises SamplerUnavailableError: no plugin verifies.
        """
        return self._negotiator.select(VERIFY).resolution


# Proofs.


def _prove_sampler(backend: SamplerBackend, offered: Capabilities, device: torch.device, need: Need) -> None:
    """Draw from two rows: all mass on a middle token, and half of it on the first and last token each."""
    logits = proof_logits(2, offered, device, need)
    vocab_size = logits.shape[1]
    expected = [{vocab_size // 2}, {0, vocab_size - 1}]
    for row, tokens in enumerate(expected):
        logits[row, sorted(tokens)] = PEAK
    pristine = logits.clone()
    params = [proof_params(offered, need)] * 2  # equal, so that a scalar filter can serve both
    metadata = SamplingMetadata.from_params(params, device=device)
    output = proof_output(RowCall(logits, metadata), backend, need)
    for row, (token, allowed) in enumerate(zip(output.token_ids.tolist(), expected, strict=True)):
        if token not in allowed:
            raise PluginError(
                f"the proof draw needs token {' or '.join(map(str, sorted(allowed)))} in row {row} "
                f"of {vocab_size} logits, found {token}"
            )
    if offered.valid_flag and not all(output.valid.tolist()):
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
    draft_logits = probs.mul(PEAK).to(logits.dtype)
    distributions = {"probs": {"draft_probs": probs}, "logits": {"draft_logits": draft_logits}}
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


def _prove_scorer(backend: ScorerBackend, offered: Capabilities, device: torch.device, need: Need) -> None:
    """Score a certain token, and one of two equally likely tokens."""
    logits = proof_logits(2, offered, device, need)
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
