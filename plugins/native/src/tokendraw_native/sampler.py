"""The native sampler: one look at the logits, one draw; and the verification of drafts.

It never waits for the device, and on devices other than CPUs every shape it uses is known on the host, so that a call
can be captured in a CUDA graph. Beside a chunk of rows it holds one number a tile and a few a row.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from tokendraw import Drafts, Need, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import VerifyMode, one_thread
from tokendraw_native.draw import DRAFT, SAMPLE, Streams, draw, draw_greedy
from tokendraw_native.logprobs import log_kept_mass, logprobs
from tokendraw_native.request import Noise, Request
from tokendraw_native.survey import survey, survey_head
from tokendraw_native.verify import verify

_SMALL = 1 << 19
"""Logits of a batch that a CPU draws from on the calling thread alone: three rows of a large vocabulary, some
milliseconds."""


class NativeSampler:
    """Plain PyTorch, every device, every request. Made by ``tokendraw.load_sampler("native")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._on_cpu = device.type == "cpu"
        self._mode = need.logprobs_mode
        self._ranked = need.logprob_ranks
        self._gumbel_dtype = need.gumbel_dtype

    @torch.no_grad()
    def sample(
        self,
        logits: Tensor,
        metadata: SamplingMetadata,
        *,
        draft: bool = False,
    ) -> SamplerOutput:
        """Draw one token a row; see :class:`tokendraw.plugin.VerifierBackend`."""
        with self._threads(logits):
            return self._sample(logits, metadata, DRAFT if draft else SAMPLE)

    @torch.no_grad()
    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch; see :mod:`tokendraw_native.verify`."""
        with self._threads(target_logits):
            return verify(
                target_logits,
                drafts,
                metadata,
                mode=mode,
                gumbel_dtype=self._gumbel_dtype,
                logprobs_mode=self._mode,
                ranked=self._ranked,
            )

    def _threads(self, logits: Tensor) -> contextlib.AbstractContextManager[None]:
        return one_thread() if self._on_cpu and logits.numel() <= _SMALL else contextlib.nullcontext()

    def _sample(self, logits: Tensor, metadata: SamplingMetadata, streams: Streams) -> SamplerOutput:
        width = metadata.facts.logprobs_width(logits.shape[1])
        if metadata.facts.all_greedy and width is None:
            return SamplerOutput(*draw_greedy(logits))
        request = Request.of(metadata, logits.shape[0], logits.device)
        noise = Noise.of(metadata, logits.shape[0], logits.device)
        found = survey_head(logits, request) if self._on_cpu and width is None else None
        found = found or survey(logits, request, masses=width is not None)
        token = draw(logits, found, request, noise, self._gumbel_dtype, streams)
        if width is None:
            return SamplerOutput(token, found.valid.squeeze(-1))
        wanted = metadata.per_row("logprobs")
        best = logprobs(logits, token, found, request, self._mode, width, wanted, ranked=self._ranked)
        return SamplerOutput(token, found.valid.squeeze(-1), best, log_kept_mass(found, request))
