"""The object returned by ``tokendraw.load_sampler``: draws, drafts and verifications on a device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tokendraw import operations
from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.capabilities import DraftKind
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.dispatcher import Dispatcher
from tokendraw.calls.drawing import Draft, Sample
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.provider import Provider
from tokendraw.calls.selection import Selection
from tokendraw.calls.sharded import ShardedSample, dispatch_over_ranks
from tokendraw.calls.warmup import Warmup, warm_up
from tokendraw.calls.warmup_batches import Batches
from tokendraw.operations.sample.warmup import SampleWarmup
from tokendraw.operations.verify.calls import Verify
from tokendraw.operations.verify.capabilities import VerifyMode
from tokendraw.operations.verify.output import VerifyOutput
from tokendraw.operations.verify.warmup import VerifyWarmup
from tokendraw.output import SamplerOutput
from tokendraw.parameters.drafts import Drafts
from tokendraw.parameters.metadata import SamplingMetadata
from tokendraw.vocab_parallel import VocabShard


class Sampler(Provider):
    """A negotiated, built and proven sampler, made by :func:`tokendraw.load_sampler`.

    Where tokendraw chose it by default and it fails the first batch of a kind (it raises, or its output has the wrong
    form), the next best one draws that batch and, if it can, all that follow; a
    :class:`tokendraw.SamplerFallbackWarning` says so once. The error itself is raised, and no sampler is replaced,
    where no other one can draw the batch either, where the user asked for a sampler, while a CUDA graph is captured,
    and where it says nothing against the sampler, as ``torch.OutOfMemoryError``. A later batch that fails raises its
    error too: it was drawn from the logits themselves, and the sampler may have overwritten them.
    """

    def __init__(
        self, negotiator: Negotiator, sampling: Selection | None = None, verification: Selection | None = None
    ) -> None:
        """Hold the operations.

        :param sampling: backends of ``sample``; None: negotiated at first use.
        :param verification: backends of ``verify``, likewise.
        """
        super().__init__(operations.get("sample"), negotiator, sampling)
        self._verifier = Dispatcher(operations.get("verify"), negotiator, verification)
        self._dispatchers["verify"] = self._verifier

    def __repr__(self) -> str:
        return f"<tokendraw.Sampler {self.name!r} on {self.device}>"

    @untraced
    def sample(
        self, logits: Tensor, metadata: SamplingMetadata, *, shard: VocabShard | None = None
    ) -> SamplerOutput:
        """Draw a token for each row.

        Waits for the device only where whoever draws does (``Capabilities.sync_free``), or where ``TOKENDRAW_DEBUG=1``
        has the call checked.

        A sampler that another one could replace draws its first batch of each kind (dtype, vocabulary, and which of
        greedy rows, seeds, filters and logprobs it may hold) from a copy of the logits, so that its successor finds
        them pristine. The copy takes the memory of the logits, and a read and a write of them, for that call; of kinds
        that :meth:`warmup` drew there is none. The logits are never modified.

        With a ``shard`` every rank of a group calls with the columns that it holds and the same metadata, and gets the
        same output, the one of all columns together. Only this sampler draws then: no companion, and no successor.

        :param logits: [B, V] float32, bfloat16 or float16, any row stride; with ``shard`` [B, n], its columns.
        :param metadata: the parameters of the B rows, on the same device.
        :param shard: which ids the columns are, where other ranks hold the rest.
        :raises InvalidInputError: a ValueError, before anything is launched; with ``shard`` on every rank alike.
        :raises SamplerUnavailableError: the batch may hold rows that nobody here can serve, or whoever could has
            failed.
        :raises PluginError: what a sampler returned has the wrong type, shape, dtype or device, or
            ``TOKENDRAW_DEBUG=1`` found another fault; or a sampler raised what would end the program.
        """
        if shard is not None:
            return dispatch_over_ranks(self._dispatcher, ShardedSample(logits, metadata, shard))
        output: SamplerOutput = self._dispatcher.dispatch_rows(Sample(logits, metadata))
        return output

    @untraced
    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of B requests: emit the accepted drafts and a token more, distributed as by the target.

        ``rejection`` accepts as many drafts as can be where it is known what they were drawn from. ``coupled`` accepts
        those that plain sampling draws at the same seeds and positions, so that the text is token for token what it
        would be without drafts; it looks at no draft's distribution. Both leave the target's distribution as it is.

        Who verifies is negotiated when the first call of this or of :meth:`draft` comes; see :attr:`verify_resolution`.
        Waits for the device only where whoever verifies does (``Capabilities.sync_free``), or where
        ``TOKENDRAW_DEBUG=1`` has the call checked. A verifier that fails is replaced as in :meth:`sample`, where it was
        given copies of the logits and of the drafts.

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
        call = Verify(target_logits, drafts, metadata, mode=mode)
        output: VerifyOutput = self._verifier.dispatch_rows(call)
        return output

    @untraced
    def draft(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Draw a draft for each row, from noise unused by verifications at the same seeds and positions.

        It is :meth:`sample` otherwise, but that whoever verifies draws.
        """
        output: SamplerOutput = self._verifier.dispatch_rows(Draft(logits, metadata))
        return output

    @property
    @untraced
    def verify_resolution(self) -> Resolution:
        """Decisions on every candidate for verification.

        :raises SamplerUnavailableError: nobody does.
        """
        return self._verifier.selection.resolution

    @untraced
    def stats(self) -> dict[str, int]:
        """Return the number of rows drawn by each sampler here, :meth:`draft` included.

        Rows that were verified do not count, nor do :meth:`warmup` and replays of graphs.
        """
        return super().stats()

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

        Goes through :meth:`sample` with every kind of batch that :meth:`SamplingMetadata.from_params` makes: with
        each filter, without any, in the order ``joint``, greedy, seeded, unseeded and mixed, with positions and
        without, with logprobs and without. Kinds that nobody here serves are left out. A sampler whose call raises
        is replaced as in :meth:`sample`, and its successor draws all of them. Torch's random state is left alone.
        From Python 3.12 on batches are drawn at once, in up to 64 threads, so that their kernels are compiled side by
        side. Returns when the device is done.

        With ``max_drafts`` the same kinds go through :meth:`draft`, and those without ``row_index``, one entry a
        request, through :meth:`verify` with K drafts a request, their ids [L - B]. The kinds without seeds, and those
        with one in every row, are also verified with ids [B, K], without drafts and, where K is 8 or more, with fewer
        by powers of two. Ids are int64; drafts' logits are as the target's, their probabilities float32, one row
        behind the other; ``coupled``, which looks at neither, gets the first of ``draft_kinds``.

        :param vocab_size: V of the logits to come.
        :param dtypes: of the logits to come.
        :param batch_sizes: numbers of rows. One is enough where a sampler has one way for all of them; give the
            largest too where it may choose by them. All batches read one memory of the largest logits [B, V]; each
            takes what the sampler needs for as many, and if no batch came before, a copy of the smallest logits. In
            a verification they are requests, with K + 1 rows of the target and K rows of drafts each.
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
        batches = Batches.of(
            vocab_size,
            dtypes=dtypes,
            batch_sizes=batch_sizes,
            row_stride=row_stride,
            seeds=seeds,
            logprobs=logprobs,
            row_index=row_index,
            metadata=metadata,
        )
        warmups: list[tuple[Dispatcher, Warmup]] = [(self._dispatcher, SampleWarmup(batches))]
        verifications = VerifyWarmup.checked(
            batches, 1 if max_drafts is None else max_drafts, verify_modes, draft_kinds
        )
        if max_drafts is not None:
            warmups.append((self._verifier, verifications))
        return warm_up(warmups, progress=progress)
