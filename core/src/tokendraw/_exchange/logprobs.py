"""Helpers for plugins that fill a :class:`~tokendraw.LogprobsTensors`: best tokens, and padding."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._exchange.output import PAD_LOGPROB, PAD_TOKEN_ID


def best_token_ids(x: Tensor, n: int) -> Tensor:
    """Return the ids of the ``n`` largest values of each row in descending order, the lowest id first on a tie.

    ``topk`` promises nothing about ties, so it is given distinct integers: the value above, the reversed id below.

    :param x: [rows, V] float32 without NaN.
    :returns: [rows, n] int64.
    """
    bits = (x + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    last = x.shape[-1] - 1
    key = (ordered << 32) | (last - torch.arange(last + 1, device=x.device))
    return last - (key.topk(n).values & 0xFFFFFFFF)


def pad_logprobs(token_ids: Tensor, logprobs: Tensor, asked: Tensor | None) -> tuple[Tensor, Tensor]:
    """Replace the columns that a row did not ask for by ``PAD_TOKEN_ID`` and ``PAD_LOGPROB``.

    :param token_ids: [rows, 1 + N] int64, the drawn token and the N best.
    :param logprobs: [rows, 1 + N] float32.
    :param asked: [rows] integer, how many of the best each row asked for (-1: all); None: every row asked for N.
    """
    if asked is None:
        return token_ids, logprobs
    asked = asked.unsqueeze(-1)
    unasked = (torch.arange(token_ids.shape[-1], device=token_ids.device) > asked) & (asked >= 0)
    return token_ids.masked_fill(unasked, PAD_TOKEN_ID), logprobs.masked_fill(unasked, PAD_LOGPROB)
