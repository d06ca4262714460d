"""A helper for plugins that fill the logprobs of a :class:`~tokendraw.VerifyOutput`."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._exchange.output import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsTensors


def logprobs_by_step(
    rows: LogprobsTensors, cu_num_logits: Tensor, num_accepted: Tensor, max_drafts: int
) -> LogprobsTensors:
    """Rearrange the logprobs of the rows of a verification by request and step, as ``VerifyOutput.logprobs`` has them.

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
