"""Target and drafts of a verification, converted to the layout of the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw import Drafts
from tokendraw_triton_gumbel.host.row_layout import with_unit_stride
from tokendraw_triton_gumbel.host.variant import CHOSEN, COUPLED, LOGITS, PROBS

_PROBS_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def draft_inputs(target: Tensor, drafts: Drafts, *, is_coupled: bool) -> tuple[Tensor, Tensor | None, int]:
    """Return the target's logits, logits or probabilities of the drafts, and the kind of the drafts.

    The logits of both get one dtype: where they differ, float32, so that nothing is lost but time.
    """
    target = with_unit_stride(target)
    if is_coupled:
        return target, None, COUPLED
    probs, logits = drafts.draft_probs, drafts.draft_logits
    if probs is not None and len(probs) and len(target) > drafts.num_requests:
        if probs.dtype not in _PROBS_DTYPES:
            probs = probs.to(torch.float32)
        return target, with_unit_stride(probs), PROBS
    if logits is not None and len(logits) and len(target) > drafts.num_requests:
        if logits.dtype != target.dtype:
            target, logits = target.to(torch.float32), logits.to(torch.float32)
        return target, with_unit_stride(logits), LOGITS
    return target, None, CHOSEN
