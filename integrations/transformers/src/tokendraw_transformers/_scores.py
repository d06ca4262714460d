"""Makes scores with all probability on a token in each row."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot_scores(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Make scores [B, V] like ``scores``, with probability 1 for ``token_ids`` [B] after a softmax.

    They are 0 at the token and half the least finite number elsewhere. They are finite, since prompt lookup
    takes -inf for a token that may never be drawn, and drops its candidate.
    """
    rest = torch.full_like(scores, torch.finfo(scores.dtype).min / 2)
    return rest.scatter_(-1, token_ids[:, None], 0.0)
