"""The native sampler: one look at the logits, one draw.

It never waits for the device, and on devices other than CPUs every shape it uses is known on the host, so that a call
can be captured in a CUDA graph. Beside a chunk of rows it holds one number a tile and a few a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Need, SamplerOutput, SamplingMetadata
from tokendraw_native.draw import draw
from tokendraw_native.logprobs import log_kept_mass, logprobs
from tokendraw_native.request import Noise, Request
from tokendraw_native.survey import survey, survey_head


class NativeSampler:
    """Plain PyTorch, every device, every request. Made by ``tokendraw.load_sampler("native")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._on_cpu = device.type == "cpu"
        self._mode = need.logprobs_mode
        self._gumbel_dtype = need.gumbel_dtype

    @torch.no_grad()
    def sample(
        self,
        logits: Tensor,
        metadata: SamplingMetadata,
        *,
        inplace: bool = False,
    ) -> SamplerOutput:
        """Draw one token a row; see :meth:`tokendraw.Sampler.sample`. ``inplace`` would gain nothing and is ignored."""
        request = Request.of(metadata, logits.shape[0], logits.device)
        noise = Noise.of(metadata, logits.shape[0], logits.device)
        width = metadata.facts.max_logprobs
        found = survey_head(logits, request) if self._on_cpu and width is None else None
        found = found or survey(logits, request, masses=width is not None)
        token = draw(logits, found, request, noise, self._gumbel_dtype)
        if width is None:
            return SamplerOutput(token, found.valid.squeeze(-1))
        best = logprobs(logits, token, found, request, self._mode, width, metadata.per_row("logprobs"))
        return SamplerOutput(token, found.valid.squeeze(-1), best, log_kept_mass(found, request))
