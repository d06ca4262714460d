"""Outputs of batches without rows, drawn or scored, and of verifications without requests."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import (
    Drafts,
    LogprobsTensors,
    Need,
    SamplerOutput,
    SamplingMetadata,
    ScoreOutput,
    VerifyOutput,
)
from tokendraw.plugin import logprobs_by_step


def empty_sampler_output(logits: Tensor, m: SamplingMetadata, need: Need) -> SamplerOutput:
    """Return the output of zero rows."""
    num_best, logprobs = m.facts.logprobs_width(logits.shape[1]), None
    if num_best is not None:
        logprobs = _empty_logprobs(logits, m, num_best, wants_ranks=need.logprob_ranks)
    return SamplerOutput(
        logits.new_empty(0, dtype=torch.int64),
        logits.new_empty(0, dtype=torch.bool),
        logprobs,
        None if logprobs is None else logits.new_empty(0, dtype=torch.float32),
        logits.new_empty(0, dtype=torch.float32) if need.threshold else None,
        logits.new_empty(0, dtype=torch.float32) if need.threshold and m.facts.any_xtc else None,
    )


def empty_score_output(logits: Tensor, m: SamplingMetadata, need: Need) -> ScoreOutput:
    """Return the scores of zero rows."""
    num_best = m.facts.logprobs_width(logits.shape[1]) or 0
    logprobs = _empty_logprobs(logits, m, num_best, wants_ranks=need.logprob_ranks)
    number = logits.new_empty(0, dtype=torch.float32)
    return ScoreOutput(
        logprobs,
        number,
        number,
        number if need.threshold else None,
        number if need.threshold and m.facts.any_xtc else None,
    )


def empty_verify_output(target: Tensor, drafts: Drafts, m: SamplingMetadata, need: Need) -> VerifyOutput:
    """Return the output of zero requests."""
    width, num_best, logprobs = drafts.max_drafts, m.facts.logprobs_width(target.shape[1]), None
    if num_best is not None:
        logprobs = _empty_logprobs(target, m, num_best, wants_ranks=need.logprob_ranks)
    num_accepted = target.new_empty(0, dtype=torch.int32)
    return VerifyOutput(
        target.new_empty(0, width + 1, dtype=torch.int64),
        num_accepted,
        target.new_empty(0, dtype=torch.bool),
        None if logprobs is None else logprobs_by_step(logprobs, drafts.cu_num_logits, num_accepted, width),
        None if logprobs is None else target.new_empty(0, width + 1, dtype=torch.float32),
        target.new_full((len(target),), float("nan"), dtype=torch.float32) if need.threshold else None,
        target.new_full((len(target),), float("nan"), dtype=torch.float32)
        if need.threshold and m.facts.any_xtc
        else None,
    )


def _empty_logprobs(
    logits: Tensor, m: SamplingMetadata, num_best: int, *, wants_ranks: bool
) -> LogprobsTensors:
    ids = m.given_ids
    return LogprobsTensors(
        logits.new_empty(0, 1 + num_best, dtype=torch.int64),
        logits.new_empty(0, 1 + num_best, dtype=torch.float32),
        logits.new_empty(0, dtype=torch.int64) if wants_ranks else None,
        None if ids is None else logits.new_empty(0, ids.shape[1], dtype=torch.int64),
        None if ids is None else logits.new_empty(0, ids.shape[1], dtype=torch.float32),
    )
