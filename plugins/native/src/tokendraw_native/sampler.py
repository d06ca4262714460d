"""The native sampler: read the logits once, draw once; and the verification of drafts.

It never waits for the device. On devices other than CPUs the host knows every shape beforehand, so that a call can be
captured in a CUDA graph. Besides a chunk of rows it keeps one number a tile and a few a row in memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tokendraw import Drafts, Need, SamplerOutput, SamplingMetadata, ScoreOutput, VerifyOutput, philox
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID, VerifyMode
from tokendraw.row_parameters import RowParameters
from tokendraw_native.draw import DRAFT, SAMPLE, draw, draw_greedy
from tokendraw_native.filters import decide_xtc
from tokendraw_native.logprobs import KeptBounds, entropy, kept_bounds, log_kept_mass, logprobs
from tokendraw_native.row_stats import row_stats, top_stats
from tokendraw_native.row_threads import share_threads
from tokendraw_native.rows import Noise
from tokendraw_native.verify import verify


class NativeSampler:
    """Plain PyTorch, every device, every request. Made by ``tokendraw.load_sampler("native")``."""

    def __init__(self, device: torch.device, need: Need) -> None:
        self._on_cpu = device.type == "cpu"
        self._need = need
        self._mode = need.logprobs_mode
        self._has_ranks = need.logprob_ranks
        self._gumbel_dtype = need.gumbel_dtype

    @torch.no_grad()
    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw a token in each row; see :class:`tokendraw.plugin.VerifierBackend`."""
        rows, vocab_size = logits.shape
        width = metadata.facts.logprobs_width(vocab_size)
        with share_threads(logits):
            if metadata.facts.all_greedy and width is None and not self._need.threshold:
                return SamplerOutput(*draw_greedy(logits))
            params = RowParameters.of(metadata, rows, logits.device)
            noise = Noise.of(metadata, rows, logits.device)
            params = decide_xtc(params, None if draft else noise, self._gumbel_dtype)
            stats = top_stats(logits, params) if self._on_cpu and width is None else None
            stats = stats or row_stats(logits, params, masses=width is not None)
            token = draw(logits, stats, params, noise, self._gumbel_dtype, DRAFT if draft else SAMPLE)
            valid = stats.valid.squeeze(-1)
            bounds = kept_bounds(logits, stats, params) if self._need.threshold else KeptBounds()
            if width is None:
                return SamplerOutput(token, valid, None, None, *bounds)
            columns = logprobs(logits, token, stats, params, metadata, self._mode, has_ranks=self._has_ranks)
            return SamplerOutput(token, valid, columns, log_kept_mass(stats, params), *bounds)

    @torch.no_grad()
    def score(self, logits: Tensor, token_ids: Tensor, metadata: SamplingMetadata) -> ScoreOutput:
        """Compute the log-probability of a token for each row; see :class:`tokendraw.plugin.ScorerBackend`."""
        with share_threads(logits):
            params = RowParameters.of(metadata, len(logits), logits.device)
            if params.xtc_probability is not None:
                params = decide_xtc(*_seeded_xtc(params, metadata), self._gumbel_dtype)
            stats = row_stats(logits, params, masses=True)
            is_token = (token_ids >= 0) & (token_ids < logits.shape[1])
            token = torch.where(is_token, token_ids, 0).to(torch.int64)
            columns = logprobs(
                logits,
                token,
                stats,
                params,
                metadata,
                self._mode,
                argmax=None if params.greedy is None else draw_greedy(logits)[0],
                has_ranks=self._has_ranks,
            )
            columns.token_ids[:, 0].masked_fill_(~is_token, PAD_TOKEN_ID)
            columns.logprobs[:, 0].masked_fill_(~is_token, PAD_LOGPROB)
            if columns.ranks is not None:
                columns.ranks.masked_fill_(~is_token, 0)
            return ScoreOutput(
                columns,
                log_kept_mass(stats, params),
                entropy(logits, stats, params, self._mode),
                *(kept_bounds(logits, stats, params) if self._need.threshold else KeptBounds()),
            )

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
        with share_threads(target_logits):
            return verify(target_logits, drafts, metadata, self._need, mode)


def _seeded_xtc(params: RowParameters, metadata: SamplingMetadata) -> tuple[RowParameters, Noise]:
    """Return the noise of rows with seeds, and the parameters without XTC in rows whose draw cannot be repeated."""
    probability = params.xtc_probability
    assert probability is not None
    rows, device = len(probability), probability.device
    no_seeds = torch.zeros(rows, dtype=torch.int64, device=device)
    seed, position = philox.seeds_and_positions(metadata, rows, device, no_seeds)
    is_seeded = metadata.per_row("seeded")
    if metadata.seed is None:
        probability = torch.zeros_like(probability)
    elif is_seeded is not None:
        probability = probability * is_seeded.unsqueeze(-1)
    return replace(params, xtc_probability=probability), Noise(seed.unsqueeze(-1), position.unsqueeze(-1))
