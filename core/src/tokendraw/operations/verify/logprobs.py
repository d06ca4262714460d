"""Helpers for plugins to fill the logprobs and kept masses of a :class:`~tokendraw.VerifyOutput`."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.output import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsTensors


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
    row, is_emitted = _emitted_rows(cu_num_logits, num_accepted, max_drafts, len(rows.token_ids))
    return LogprobsTensors(
        torch.where(is_emitted.unsqueeze(-1), rows.token_ids[row], PAD_TOKEN_ID),
        torch.where(is_emitted.unsqueeze(-1), rows.logprobs[row], PAD_LOGPROB),
        None if rows.ranks is None else torch.where(is_emitted, rows.ranks[row], 0),
    )


def log_kept_mass_by_step(
    log_kept_mass: Tensor, cu_num_logits: Tensor, num_accepted: Tensor, max_drafts: int
) -> Tensor:
    """Rearrange the kept masses of the rows of a verification, as ``VerifyOutput.log_kept_mass`` has them.

    :param log_kept_mass: [L] float32. The other parameters are those of :func:`logprobs_by_step`.
    :returns: [B, K + 1] float32; padding after the last emitted token.
    """
    row, is_emitted = _emitted_rows(cu_num_logits, num_accepted, max_drafts, len(log_kept_mass))
    return torch.where(is_emitted, log_kept_mass[row], PAD_LOGPROB)


def _emitted_rows(
    cu_num_logits: Tensor, num_accepted: Tensor, max_drafts: int, rows: int
) -> tuple[Tensor, Tensor]:
    """Find the row of each step of each request, [B, K + 1] int64, and whether the step emitted a token."""
    steps = torch.arange(max_drafts + 1, device=num_accepted.device)
    row = (cu_num_logits[:-1].to(torch.int64).unsqueeze(-1) + steps).clamp(max=max(rows - 1, 0))
    return row, steps <= num_accepted.unsqueeze(-1)
