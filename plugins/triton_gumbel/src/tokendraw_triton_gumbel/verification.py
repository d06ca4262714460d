"""What a verification is given as the kernels read it, and its log-probabilities as its caller does."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Drafts, LogprobsTensors
from tokendraw.plugin import PAD_LOGPROB, PAD_TOKEN_ID
from tokendraw_triton_gumbel.launches.variant import CHOSEN, COUPLED, LOGITS, PROBS

_PROBABILITIES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def readable_alike(target: Tensor, drafts: Drafts, *, is_coupled: bool) -> tuple[Tensor, Tensor | None, int]:
    """(The target's logits, logits or probabilities of the drafts, what is known of their distribution).

    The logits of both get one dtype: float32 holds those of the others, so that nothing is lost but time.
    """
    target = one_behind_the_other(target)
    if is_coupled:
        return target, None, COUPLED
    probs, logits = drafts.draft_probs, drafts.draft_logits
    if probs is not None and len(probs) and len(target) > drafts.num_requests:
        if probs.dtype not in _PROBABILITIES:
            probs = probs.to(torch.float32)
        return target, one_behind_the_other(probs), PROBS
    if logits is not None and len(logits) and len(target) > drafts.num_requests:
        if logits.dtype != target.dtype:
            target, logits = target.to(torch.float32), logits.to(torch.float32)
        return target, one_behind_the_other(logits), LOGITS
    return target, None, CHOSEN


def one_behind_the_other(rows: Tensor) -> Tensor:
    """Rows whose elements are neighbours, whatever their stride."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


def by_step(
    best: LogprobsTensors, cu_num_logits: Tensor, num_accepted: Tensor, width: int
) -> LogprobsTensors:
    """Log-probabilities by request and step, from those of the rows."""
    steps = torch.arange(width + 1, device=num_accepted.device)
    emitted = steps <= num_accepted.unsqueeze(-1)
    if not len(num_accepted):
        shape = (0, width + 1)
        return LogprobsTensors(
            best.token_ids.new_empty(*shape, best.token_ids.shape[-1]),
            best.logprobs.new_empty(*shape, best.logprobs.shape[-1]),
            None if best.ranks is None else best.ranks.new_empty(shape),
        )
    rows = (cu_num_logits[:-1].to(torch.int64).unsqueeze(-1) + steps).clamp(max=len(best.token_ids) - 1)
    cells = emitted.unsqueeze(-1)
    return LogprobsTensors(
        torch.where(cells, best.token_ids[rows], PAD_TOKEN_ID),
        torch.where(cells, best.logprobs[rows], PAD_LOGPROB),
        None if best.ranks is None else torch.where(emitted, best.ranks[rows], 0),
    )
