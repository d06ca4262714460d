"""Makes the outputs of batches without rows and of verifications without requests."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Drafts, LogprobsTensors, SamplerOutput, SamplingMetadata, VerifyOutput
from tokendraw.plugin import logprobs_by_step


def nothing_drawn(logits: Tensor, m: SamplingMetadata, *, ranked: bool) -> SamplerOutput:
    """Return the output of zero rows.

    :param ranked: whether logprobs have ranks.
    """
    best = _nothing_described(logits, m, ranked=ranked)
    return SamplerOutput(
        logits.new_empty(0, dtype=torch.int64),
        logits.new_empty(0, dtype=torch.bool),
        best,
        None if best is None else logits.new_empty(0, dtype=torch.float32),
    )


def nothing_verified(target: Tensor, drafts: Drafts, m: SamplingMetadata, *, ranked: bool) -> VerifyOutput:
    """Return the output of zero requests."""
    width, best = drafts.max_drafts, _nothing_described(target, m, ranked=ranked)
    num_accepted = target.new_empty(0, dtype=torch.int32)
    return VerifyOutput(
        target.new_empty(0, width + 1, dtype=torch.int64),
        num_accepted,
        target.new_empty(0, dtype=torch.bool),
        None if best is None else logprobs_by_step(best, drafts.cu_num_logits, num_accepted, width),
        None if best is None else target.new_empty(0, width + 1, dtype=torch.float32),
    )


def _nothing_described(logits: Tensor, m: SamplingMetadata, *, ranked: bool) -> LogprobsTensors | None:
    num_best = m.facts.logprobs_width(logits.shape[1])
    if num_best is None:
        return None
    return LogprobsTensors(
        logits.new_empty(0, 1 + num_best, dtype=torch.int64),
        logits.new_empty(0, 1 + num_best, dtype=torch.float32),
        logits.new_empty(0, dtype=torch.int64) if ranked else None,
    )
