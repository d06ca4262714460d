"""The verifier `cpu`: passes the addresses of drafts and targets to the compiled library.

A request is verified row by row, no further than its tokens need. Log-probabilities and thresholds are those of a draw
of all rows, which follows where they are asked for.
"""

from __future__ import annotations

from ctypes import pointer
from typing import Final

import torch
from torch import Tensor

from tokendraw import Drafts, SamplerOutput, SamplingMetadata, VerifyOutput, philox, speculative
from tokendraw.plugin import DRAFT_KINDS, VERIFY_MODES, VerifyMode, log_kept_mass_by_step, logprobs_by_step
from tokendraw_cpu.library import LogitsArguments, VerifyArguments
from tokendraw_cpu.sampler import (
    BOOL,
    CPU,
    DTYPES,
    INT64,
    SAMPLE_STREAMS,
    Batch,
    CpuSampler,
    Streams,
    address,
    dense,
    filter_temperature,
    logits_arguments,
    num_threads,
    with_dense_rows,
)

_DRAFT_STREAMS: Final[Streams] = (philox.DRAFT_TOKEN, philox.DRAFT_TILE)
_MODES: Final = VERIFY_MODES
"""In the order of ``VerifyMode`` in ``cpp/verify_arguments.h``."""
_KINDS: Final = DRAFT_KINDS
"""In the order of ``DraftKind`` there."""
_PROBS_DTYPES: Final = {torch.float32: 0, torch.float64: 1}


class CpuVerifier(CpuSampler):
    """The compiled sampler with verifications. Made by ``tokendraw.load("verify", "cpu")``."""

    def sample(self, logits: Tensor, metadata: SamplingMetadata, *, draft: bool = False) -> SamplerOutput:
        """Draw a token in each row; see :class:`tokendraw.plugin.VerifierBackend`."""
        return self.draw(self.read_batch(logits, metadata), _DRAFT_STREAMS if draft else SAMPLE_STREAMS)

    @torch.no_grad()
    def verify(
        self,
        target_logits: Tensor,
        drafts: Drafts,
        metadata: SamplingMetadata,
        *,
        mode: VerifyMode = "rejection",
    ) -> VerifyOutput:
        """Verify the drafts of a batch; see :class:`tokendraw.plugin.VerifierBackend`."""
        batch = self.read_batch(target_logits, metadata)
        if metadata.facts.all_greedy:
            mode = "coupled"  # greedy requests look at no draft's distribution
        output = self._verify(batch, drafts, mode)
        if metadata.facts.logprobs_width(target_logits.shape[1]) is None and not self._need.threshold:
            return output
        request, step = speculative.rows_of_requests(drafts.cu_num_logits, len(target_logits))
        token_ids = output.token_ids[request, step.clamp(max=drafts.max_drafts)].clamp_(min=0)
        rows = self.draw(batch, scored_ids=token_ids)
        logprobs = log_kept_mass = None
        if rows.logprobs is not None and rows.log_kept_mass is not None:
            steps = drafts.cu_num_logits, output.num_accepted, drafts.max_drafts
            logprobs = logprobs_by_step(rows.logprobs, *steps)
            log_kept_mass = log_kept_mass_by_step(rows.log_kept_mass, *steps)
        return VerifyOutput(
            output.token_ids,
            output.num_accepted,
            output.valid,
            logprobs,
            log_kept_mass,
            rows.threshold,
            rows.ceiling,
        )

    def _verify(self, batch: Batch, drafts: Drafts, mode: VerifyMode) -> VerifyOutput:
        """Verify without log-probabilities and thresholds."""
        rows, requests = len(batch.logits), drafts.num_requests
        ids = drafts.draft_token_ids
        ids = dense(ids, torch.int64, requests if ids.dim() == 2 else len(ids))
        offsets = dense(drafts.cu_num_logits, torch.int64, requests + 1)
        kind, values, dtype = _distributions(drafts) if mode != "coupled" else ("chosen", None, 0)
        floor = None
        if kind == "logits" and values is not None:
            floor = self._draft_floors(values, batch, drafts)
        row_output = SamplerOutput(INT64.new_empty(rows), BOOL.new_empty(rows))
        output = VerifyOutput(
            INT64.new_empty(requests, drafts.max_drafts + 1),
            torch.empty(requests, dtype=torch.int32, device=CPU),
            BOOL.new_empty(requests),
        )
        logits = logits_arguments(batch.logits)
        self._context.verify(
            VerifyArguments(
                LogitsArguments(logits.data, requests, logits.size, logits.stride),
                pointer(self.arguments(batch, row_output)),
                offsets.data_ptr(),
                ids.data_ptr(),
                ids.shape[1] if ids.dim() == 2 else 0,
                drafts.max_drafts,
                LogitsArguments() if values is None else logits_arguments(values),
                address(floor),
                output.token_ids.data_ptr(),
                output.num_accepted.data_ptr(),
                output.valid.data_ptr(),
                _MODES.index(mode),
                _KINDS.index(kind),
                dtype,
                num_threads(batch.logits),
            )
        )
        return output

    def _draft_floors(self, draft_logits: Tensor, batch: Batch, drafts: Drafts) -> Tensor | None:
        """Compute the floors of the drafts' logits from their moments, [L - B] float32."""
        filters = batch.metadata.filters_per_row()
        if filters is None:
            return None
        names, values = filters
        rows = speculative.target_rows(drafts.cu_num_logits, len(draft_logits))
        temperature = filter_temperature(batch.columns, len(batch.logits))
        return self.floors(draft_logits, names, values[rows], temperature[rows])


def _distributions(drafts: Drafts) -> tuple[str, Tensor | None, int]:
    """Return the kind of the drafts, their values with dense rows, and the number of their dtype."""
    if drafts.draft_probs is not None and len(drafts.draft_probs):
        probs = with_dense_rows(drafts.draft_probs)
        if probs.dtype not in _PROBS_DTYPES:
            probs = probs.to(torch.float32)
        return "probs", probs, _PROBS_DTYPES[probs.dtype]
    if drafts.draft_logits is not None and len(drafts.draft_logits):
        logits = with_dense_rows(drafts.draft_logits)
        return "logits", logits, DTYPES[logits.dtype]
    return "chosen", None, 0
