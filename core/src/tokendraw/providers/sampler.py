"""The object returned by ``tokendraw.load_sampler``: draws, drafts, verifications and scores on a device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description import DraftKind, Operation
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.rows import RowCall
from tokendraw.calls.warmup import Batches, CallGroups, warm_up
from tokendraw.operations.records import SAMPLE, SCORE, VERIFY, VerifyMode
from tokendraw.operations.row_methods import SampleProvider, ScoreProvider, VerifyProvider, verified_by
from tokendraw.parameters.metadata import SamplingMetadata


class Sampler(SampleProvider, VerifyProvider, ScoreProvider):
    """A negotiated, built and proven sampler, made by :func:`tokendraw.load_sampler`.

    Where tokendraw chose it by default and it fails the first batch of a kind (it raises, or its output has the wrong
    form), the next best one draws that batch and, if it can, all that follow; a
    :class:`tokendraw.SamplerFallbackWarning` says so once. The error itself is raised, and no sampler is replaced,
    where no other one can draw the batch either, where the user asked for a sampler, while a CUDA graph is captured,
    and where it says nothing against the sampler, as ``torch.OutOfMemoryError``. A later batch that fails raises its
    error too: it was drawn from the logits themselves, and the sampler may have overwritten them.

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

    @untraced
    def warmup(  # type: ignore[override]  # it takes the arguments of both operations
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
        verified = verified_by(batches, 1 if max_drafts is None else max_drafts, verify_modes, draft_kinds)
        warmups: list[tuple[Operation, CallGroups]] = [(SAMPLE, drawn), (VERIFY, verified)]
        return warm_up(self._negotiator, warmups[: 1 if max_drafts is None else 2], progress=progress)
