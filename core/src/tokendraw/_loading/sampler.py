"""The object that callers hold: one sampler on one device, its resolution, and the check of every call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor

from tokendraw import operations
from tokendraw._discovery.guard import log_traceback
from tokendraw._exchange.backends import SamplerBackend
from tokendraw._exchange.capabilities import Capabilities
from tokendraw._exchange.facts import BatchFacts
from tokendraw._exchange.input_checks import (
    check_batch,
    check_drafts,
    check_logits,
    check_metadata,
    check_values,
)
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.operation import Operation
from tokendraw._exchange.output import SamplerOutput, VerifyOutput
from tokendraw._loading import warmup as _warmup
from tokendraw._loading.progress import Track, progress_line
from tokendraw._loading.warmup import Plan
from tokendraw._loading.warnings import warn_of
from tokendraw._messages.announce import announce
from tokendraw._messages.errors import (
    InvalidInputError,
    SamplerFallbackWarning,
    SamplerUnavailableError,
    UntestedUpstreamWarning,
)
from tokendraw._resolution import advice
from tokendraw._resolution.candidate import Resolution
from tokendraw._serving import fallback
from tokendraw._serving.drawing import Drawing
from tokendraw._serving.fallback import CallFailedError
from tokendraw._serving.negotiation import Negotiation
from tokendraw._serving.proof import random_state_kept
from tokendraw._serving.routing import Member, Serving
from tokendraw._torch.forked import reseed_children
from tokendraw._torch.graphs import is_capturing
from tokendraw._torch.untraced import untraced
from tokendraw.operations.verify import OPERATION as _VERIFY
from tokendraw.operations.verify import calls as _verifying
from tokendraw.operations.verify.capabilities import DraftKind, VerifyMode
from tokendraw.operations.verify.drafts import Drafts
from tokendraw.operations.verify.warmup import verifications

_log = logging.getLogger("tokendraw")


class Sampler:
    """A sampler that was negotiated, built and proven. :func:`tokendraw.load_sampler` makes it.

    Where tokendraw chose it by default and a call of it fails (it raises, or returns what is no output), the next
    best one draws that batch and, if it can, all that follow; a :class:`tokendraw.SamplerFallbackWarning` says so
    once. The error itself is raised, and nobody is replaced, where nobody else can draw the batch either, where the
    user asked for a sampler, while a CUDA graph is captured, and where it says nothing against the sampler, as
    ``torch.OutOfMemoryError``. It is raised as well where the failed sampler may have overwritten the logits: only one
    that was given a copy cannot have, and that is so for the first batch of each kind, and after such an error.
    """

    def __init__(
        self,
        *,
        name: str,
        backend: SamplerBackend,
        resolution: Resolution,
        device: torch.device,
        companion: tuple[str, SamplerBackend] | None = None,
        capabilities: Capabilities | None = None,
        companion_capabilities: Capabilities | None = None,
        strict: bool = False,
        debug: bool = False,
    ) -> None:
        reseed_children()
        self.device = device
        self._serving = Serving(
            resolution=resolution,
            chosen=Member(name, backend),
            companion=Member(*companion) if companion else None,
            capabilities=capabilities,
            companion_capabilities=companion_capabilities,
        )
        self._facts: Negotiation | None = None
        self._strict = strict
        self._debug = debug
        self._replacing = threading.RLock()
        self._drawing = Drawing(debug=debug)
        self._verifying: Serving | None = None

    @classmethod
    def negotiated(cls, facts: Negotiation, serving: Serving, *, strict: bool, debug: bool) -> Self:
        """Hold what was settled, and the facts to settle it anew by when a call fails."""
        chosen, resolution = serving.chosen, serving.resolution
        sampler = cls(
            name=chosen.name,
            backend=chosen.backend,
            resolution=resolution,
            device=facts.device,
            strict=strict,
            debug=debug,
        )
        sampler._facts, sampler._serving = facts, serving
        return sampler

    @property
    def name(self) -> str:
        """Name of the plugin that was chosen."""
        return self._serving.chosen.name

    @property
    def resolution(self) -> Resolution:
        """Every decision that led to it."""
        return self._serving.resolution

    def __repr__(self) -> str:
        return f"<tokendraw.Sampler {self.name!r} on {self.device}>"

    @untraced
    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw one token a row.

        Waits for the device only where whoever draws does (``Capabilities.sync_free``), or where ``TOKENDRAW_DEBUG=1``
        has the call checked.

        A sampler that another one could replace draws its first batch of each kind (dtype, vocabulary, and which of
        greedy rows, seeds, filters and logprobs it may hold) from a copy of the logits, so that its successor finds
        them pristine. The copy takes the memory of the logits, and a read and a write of them, for that call; of kinds
        that :meth:`warmup` drew there is none. The logits are never modified.

        :param logits: [B, V] float32, bfloat16 or float16, any row stride.
        :param metadata: the parameters of the B rows, on the same device.
        :raises InvalidInputError: a ValueError, before anything is launched.
        :raises SamplerUnavailableError: the batch may hold rows that nobody here can serve, or whoever could has
            failed.
        :raises PluginError: what a sampler returned has the wrong type, shape, dtype or device, or
            ``TOKENDRAW_DEBUG=1`` found another fault; or a sampler raised what would end the program.
        """
        self._check(logits, metadata)
        serving = self._serving
        try:
            return self._drawing.draw(serving, logits, metadata)
        except CallFailedError as error:
            failed = error
        refusal = fallback.refusal(failed, serving)
        if refusal is not None:
            raise refusal
        return self._draw_with_another(failed, logits, metadata)

    @untraced
    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of B requests: emit the accepted ones and one token more, exactly as the target draws.

        ``rejection`` accepts as many drafts as can be where it is known what they were drawn from. ``coupled`` accepts
        those that plain sampling draws at the same seeds and positions, so that the text is token for token what it
        would be without drafts; it looks at no draft's distribution. Both leave the target's distribution as it is.

        Who verifies is negotiated when the first call of this or of :meth:`draft` comes; see :attr:`verify_resolution`.
        Waits for the device only where whoever verifies does (``Capabilities.sync_free``), or where
        ``TOKENDRAW_DEBUG=1`` has the call checked. An error of a call is the caller's: nobody takes over.

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
        check_logits("target_logits", target_logits, self.device)
        check_drafts(drafts)
        check_metadata("target_logits", target_logits, metadata, self.resolution.need)
        _verifying.check(target_logits, drafts, metadata, mode)
        if self._debug:
            check_values(metadata, drafts)
        serving = self._verification()
        return _verifying.verify(serving, target_logits, drafts, metadata, mode, debug=self._debug)

    @untraced
    def draft(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw one draft a row, from noise that no verification at the same seeds and positions shares.

        As :meth:`sample` otherwise, but that whoever verifies draws, each row with the one who serves it, and that an
        error of a call is the caller's.
        """
        self._check(logits, metadata)
        try:
            return self._drawing.draw(self._verification(), logits, metadata)
        except CallFailedError as failed:
            error = failed.error
        raise error

    @property
    @untraced
    def verify_resolution(self) -> Resolution:
        """Every decision that led to who verifies.

        :raises SamplerUnavailableError: nobody does.
        """
        return self._verification().resolution

    def _verification(self) -> Serving:
        with self._replacing:
            facts, serving = self._facts, self._verifying
            if serving is None or (facts and not facts.stands(serving)):
                if facts is None:
                    raise SamplerUnavailableError(
                        f"{self.name!r} was not negotiated, so nobody verifies. Use tokendraw.load_sampler."
                    )
                self._facts, serving = facts.settle(_VERIFY)
                warn_of(serving.resolution, strict=self._strict, once_for="verify")
                self._verifying = serving
                if not self._facts.stands(self._serving):
                    self._facts, self._serving = self._facts.settle(operations.get("sample"))
            return serving

    def prepare(self, operation: Operation) -> None:
        """Negotiate, build and prove now who serves an operation beside ``sample``."""
        self._verification()

    @untraced
    def stats(self) -> dict[str, int]:
        """How many rows each sampler has drawn here, by name, those of :meth:`draft` among them.

        Rows that were verified do not count, nor do :meth:`warmup` and replays of graphs.
        """
        return self._drawing.counts()

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
        """Draw from made-up batches, so that no request waits for a kernel to be compiled or loaded.

        On a CPU nothing is compiled: the arguments are checked, who verifies is negotiated where ``max_drafts`` is
        given, and nothing is drawn. The log of ``tokendraw`` says so.

        Goes through :meth:`sample` with every kind of batch that :meth:`SamplingMetadata.from_params` makes: with
        each filter, without any, in the order ``joint``, greedy, seeded, unseeded and mixed, with positions and
        without, with logprobs and without. Kinds that nobody here serves are left out. A sampler whose call raises
        is replaced as in :meth:`sample`, and its successor draws all of them. Torch's random state is left alone.
        Returns when the device is done.

        With ``max_drafts`` the same kinds go through :meth:`draft`, and those without ``row_index``, one entry a
        request, through :meth:`verify` with K drafts a request, their ids [L - B]. The kinds without seeds, and those
        with one in every row, are also verified with ids [B, K], without drafts and, where K is 8 or more, with fewer
        by powers of two. Ids are int64; drafts' logits are as the target's, their probabilities float32, one row
        behind the other; ``coupled``, which looks at neither, gets the first of ``draft_kinds``.

        :param vocab_size: V of the logits to come.
        :param dtypes: of the logits to come.
        :param batch_sizes: numbers of rows. One is enough where a sampler has one way for all of them; give the
            largest too where it may choose by them. A batch holds about its logits [B, V] and what the sampler needs
            for as many, and if no batch came before, a copy of the smallest logits. In a verification they are
            requests, with K + 1 rows of the target and K rows of drafts each.
        :param row_stride: of the logits in elements, where their rows are padded; None: V.
        :param seeds: whether seeds and positions may come.
        :param logprobs: values of ``SamplingParams.logprobs`` that may come; empty: none.
        :param row_index: whether the parameters of some batches come by request slot.
        :param metadata: batches to draw in place of all those kinds, such as those of an engine that keeps its
            parameters in tensors of its own dtypes: kernels are compiled for dtypes. Each brings its number of rows;
            in a verification that of requests, unless it has a ``row_index``.
        :param max_drafts: K, the most drafts that a request may have; None: nothing is verified.
        :param verify_modes: modes of the verifications to come.
        :param draft_kinds: what they will be given of the drafts: ``probs``, ``logits`` or, with neither, ``chosen``.
        :param progress: whether a line on stderr shows how far it is; None: if stderr is a terminal.
        :returns: the seconds that it took; 0.0 on a CPU.
        :raises InvalidInputError: a ValueError that names the argument; or a CUDA graph is being captured.
        :raises SamplerUnavailableError: nobody here serves the plainest batch, or nobody verifies.
        """
        plan = Plan.of(
            vocab_size,
            dtypes=dtypes,
            batch_sizes=batch_sizes,
            row_stride=row_stride,
            seeds=seeds,
            logprobs=logprobs,
            row_index=row_index,
            metadata=metadata,
            max_drafts=max_drafts,
            verify_modes=verify_modes,
            draft_kinds=draft_kinds,
        )
        if is_capturing():
            raise InvalidInputError(
                "'warmup' needs a stream that captures no CUDA graph, found one that does: its draws would become "
                "part of the graph. Call it before the capture."
            )
        start = time.perf_counter()
        verifying = None if plan.max_drafts is None else self._verification()
        device = torch.empty(0, device=self.device).device  # with its index
        if _warmup.compiles_nothing(device):
            _log.info("warmup draws nothing: on %s there is nothing to compile", device)
            return 0.0
        drawn = self.stats()
        with random_state_kept(device), torch.no_grad(), progress_line(progress) as track:
            self._warm_up(plan, verifying, device, track)
        self._drawing.forget_since(drawn)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start

    def _warm_up(self, plan: Plan, verifying: Serving | None, device: torch.device, track: Track) -> None:
        def calls(doing: str, serving: Serving) -> Iterable[tuple[Tensor, SamplingMetadata]]:
            batches = plan.batches(serving, device)
            return track(doing, plan.calls(batches, device), len(batches) * len(plan.dtypes))

        serving = None
        while serving is not self._serving:  # a successor starts from the beginning
            serving = self._serving
            for logits, batch in calls("batches", serving):
                self.sample(logits, batch)
                if self._serving is not serving:
                    break
        if verifying is None:
            return
        for logits, batch in calls("drafts", verifying):
            self.draft(logits, batch)
        for call in track("verifications", verifications(plan, verifying, device), None):
            self.verify(call.target_logits, call.drafts, call.metadata, mode=call.mode)

    def _draw_with_another(
        self, failed: CallFailedError, logits: Tensor, metadata: SamplingMetadata
    ) -> SamplerOutput:
        """Draw a batch that a sampler failed with whoever can, and put them in its place; or raise.

        One thread at a time: one that fails later finds the successor in its place.
        """
        failures = [failed]
        with self._replacing:
            if self._facts is None or not self._facts.companions:
                raise failed.shown
            facts, serving = self._facts, self._serving
            while True:
                try:
                    if failures[-1].member in (serving.chosen, serving.companion):
                        facts, serving = fallback.successor(
                            facts, operations.get("sample"), failures[-1], metadata.facts
                        )
                    output = self._drawing.draw(serving, logits, metadata)
                    break
                except CallFailedError as another:
                    failures.append(another)
                    unavailable = None
                except SamplerUnavailableError as error:
                    unavailable = error
                if unavailable is not None and len(failures) == 1:
                    raise unavailable from failed.error
                if unavailable is not None or not failures[-1].may_be_followed:
                    raise fallback.failed_by_all(failures)
            self._tell_of_failures(failures, serving, metadata.facts)
            self._facts, self._serving = facts, serving
        return output

    def _tell_of_failures(self, failures: list[CallFailedError], serving: Serving, batch: BatchFacts) -> None:
        resolution = serving.resolution
        for failed in failures:
            name = failed.member.name
            log_traceback(f"a call of {name!r}", failed.error, aloud=self._debug)
            text = advice.failed_call(name, failed.reason, serving.member(batch).name, resolution.choice)
            try:
                announce(SamplerFallbackWarning, text, strict=self._strict, once_for=("call", name))
            except SamplerFallbackWarning as warning:
                raise warning from failed.error
        for text in resolution.untested:
            announce(UntestedUpstreamWarning, text, strict=self._strict)

    def _check(self, logits: Tensor, metadata: SamplingMetadata) -> None:
        check_logits("logits", logits, self.device)
        check_batch("logits", logits, metadata, self._serving.resolution.need)
        if self._debug:
            check_values(metadata)
