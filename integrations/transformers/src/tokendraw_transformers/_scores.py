"""Scores that are certain of one token a row."""

from __future__ import annotations

import torch
from torch import Tensor


def certain_of(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Scores of the shape of ``scores`` [B, V] that leave nothing but ``token_ids`` [B].

    0 at the token, half the least finite number elsewhere: softmax gives it probability 1. Finite, since prompt lookup
    takes -inf for a token that may never be drawn, and drops its candidate.
    """
    rest = torch.full_like(scores, torch.finfo(scores.dtype).min / 2)
    return rest.scatter_(-1, token_ids[:, None], 0.0)
