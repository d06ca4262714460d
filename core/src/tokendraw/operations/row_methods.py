"""Draws, drafts, verifications and scores of rows: the methods for users, what ``load`` returns, and the proofs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.importing import untraced
from tokendraw.backends.description import (
    DRAFT_KINDS,
    VERIFY_MODES,
    Capabilities,
    DraftKind,
    Need,
    Operation,
    VerifyMode,
)
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.dispatch import Provider, provider_method
from tokendraw.calls.rows import RowCall, Verify
from tokendraw.calls.warmup import Batches, checked_choices, checked_integer, warm_up
from tokendraw.errors import PluginError
from tokendraw.operations import (
    SAMPLE,
    SCORE,
    VERIFY,
    SamplerBackend,
    ScorerBackend,
    VerifierBackend,
    VerifyCapabilities,
)
from tokendraw.output import SamplerOutput, ScoreOutput, VerifyOutput
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.fields import FILTER_PARAMETERS
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.parameters.params import SamplingParams

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
        logprobs. Kinds that no backend here serves are left out. A sampler whose call raises is replaced as in
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
        :raises SamplerUnavailableError: no backend here serves the plainest batch, or none verifies.
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

_PEAK = 100.0
"""Logit that leaves exp(-100) of the mass for all other tokens."""
_VOCAB_SIZE = 2048  # two tiles of the two-level draw


def _proof_logits(rows: int, capabilities: Capabilities, device: torch.device, need: Need) -> torch.Tensor:
    """Make logits [rows, V] of 0 in a needed or advertised dtype."""
    vocab_size = min(_VOCAB_SIZE, capabilities.max_vocab_size or _VOCAB_SIZE)
    dtype = getattr(torch, need.dtype or (*capabilities.dtypes, "float32")[0])
    return torch.zeros(rows, vocab_size, dtype=dtype, device=device)


def _proof_params(capabilities: Capabilities, need: Need) -> SamplingParams:
    """Make parameters for two equally likely tokens, within the advertised capabilities.

    Where kernels are compiled on demand for a dtype that was not named they ask for nothing, which compiles least.
    """
    if capabilities.compiles_on_demand and need.dtype is None:
        return SamplingParams()
    served = {name for name, _ in capabilities.filters}
    filters = {p.name: p.example for p in FILTER_PARAMETERS if p.name in served}
    if "top_k" in filters:
        filters["top_k"] = 2
    orders = [order for order in need.filter_orders if order in capabilities.filter_orders]
    two_filters: dict[str, Any] = dict([*filters.items()][:2])  # a third one could need another kernel
    return SamplingParams(**two_filters, filter_order=(*orders, "top_k_first")[0])


def _proof_output(call: RowCall, backend: Any, need: Need) -> Any:
    output = call.run(backend)
    wrong = call.output_check(need)(output)
    if wrong is not None:
        raise PluginError(f"the proof draw needs {wrong}")
    return output


def _prove_sampler(backend: SamplerBackend, offered: Capabilities, device: torch.device, need: Need) -> None:
    """Draw from two rows: all mass on a middle token, and half of it on the first and last token each."""
    logits = _proof_logits(2, offered, device, need)
    vocab_size = logits.shape[1]
    expected = [{vocab_size // 2}, {0, vocab_size - 1}]
    for row, tokens in enumerate(expected):
        logits[row, sorted(tokens)] = _PEAK
    pristine = logits.clone()
    params = [_proof_params(offered, need)] * 2  # equal, so that a scalar filter can serve both
    metadata = SamplingMetadata.from_params(params, device=device)
    output = _proof_output(RowCall(logits, metadata), backend, need)
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
    logits = _proof_logits(4, capabilities, device, need)
    vocab_size = logits.shape[1]
    peak = vocab_size // 2
    logits[:, peak] = _PEAK
    probs = torch.zeros(2, vocab_size, device=device, dtype=torch.float32)
    probs[0, peak] = probs[1, 0] = 1.0
    kind = "probs" if "probs" in capabilities.draft_kinds else (*capabilities.draft_kinds, "chosen")[0]
    draft_logits = probs.mul(_PEAK).to(logits.dtype)
    distributions = {"probs": {"draft_probs": probs}, "logits": {"draft_logits": draft_logits}}
    drafts = Drafts.from_lists([[peak], [0]], device=device, **distributions.get(kind, {}))
    metadata = SamplingMetadata.from_params([_proof_params(capabilities, need)] * 4, device=device)
    mode = (*capabilities.verify_modes, "rejection")[0]
    output = _proof_output(verify(logits, drafts, metadata, mode=mode), backend, need)
    found = (output.token_ids.tolist(), output.num_accepted.tolist())
    if found != ([[peak, peak], [peak, -1]], [1, 0]):
        raise PluginError(
            f"the proof draw needs the tokens {[[peak, peak], [peak, -1]]} of {vocab_size} logits and [1, 0] accepted, "
            f"found {found[0]} and {found[1]}"
        )


def _prove_scorer(backend: ScorerBackend, offered: Capabilities, device: torch.device, need: Need) -> None:
    """Score a certain token, and one of two equally likely tokens."""
    logits = _proof_logits(2, offered, device, need)
    peak = logits.shape[1] // 2
    logits[:, peak] = _PEAK
    logits[1, 0] = _PEAK
    token_ids = torch.tensor([peak, 0], device=device, dtype=torch.int64)
    metadata = SamplingMetadata.from_params([SamplingParams()] * 2, device=device)
    output = _proof_output(score(logits, token_ids, metadata), backend, need)
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
