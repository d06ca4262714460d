"""Brings what a verification is given into the layout that the kernels read."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Drafts
from tokendraw_triton_gumbel.host.variant import CHOSEN, COUPLED, LOGITS, PROBS

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
