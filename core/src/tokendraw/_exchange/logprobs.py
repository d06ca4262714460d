"""Helpers for plugins that fill a :class:`~tokendraw.LogprobsTensors`: best tokens, padding, and order by step."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._exchange.output import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsTensors


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


def logprobs_by_step(
    rows: LogprobsTensors, cu_num_logits: Tensor, num_accepted: Tensor, max_drafts: int
) -> LogprobsTensors:
    """Rearrange the logprobs of the rows of a verification by request and step, as its output has them.

    :param rows: tensors whose first dimension is the L rows of logits.
    :param cu_num_logits: [B + 1] integer, as in :class:`tokendraw.Drafts`.
    :param num_accepted: [B] integer.
    :param max_drafts: K.
    :returns: the same tensors with dimensions [B, K + 1] first; padding, and rank 0, after the last emitted token.
    """
    steps = torch.arange(max_drafts + 1, device=num_accepted.device)
    last = max(len(rows.token_ids) - 1, 0)
    row = (cu_num_logits[:-1].to(torch.int64).unsqueeze(-1) + steps).clamp(max=last)
    is_emitted = steps <= num_accepted.unsqueeze(-1)
    return LogprobsTensors(
        torch.where(is_emitted.unsqueeze(-1), rows.token_ids[row], PAD_TOKEN_ID),
        torch.where(is_emitted.unsqueeze(-1), rows.logprobs[row], PAD_LOGPROB),
        None if rows.ranks is None else torch.where(is_emitted, rows.ranks[row], 0),
    )
