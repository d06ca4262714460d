"""What a sampling step returns. All tensors stay on the device of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAD_TOKEN_ID = -1
"""Fills ``LogprobsTensors.token_ids`` where a row asked for fewer entries than the widest row of its batch."""
PAD_LOGPROB = float("-inf")
"""Fills ``LogprobsTensors.logprobs`` in the same places."""


@dataclass(frozen=True, slots=True)
class LogprobsTensors:
    """Log-probabilities (or logits, by ``logprobs_mode``) of the drawn token and of the N best.

    N is the largest ``SamplingParams.logprobs`` of the batch. Column 0 is the drawn token and is filled for every
    row; the best follow in descending order, the lowest id first on a tie. Beyond what a row asked for, and beyond
    the vocabulary, stand ``PAD_TOKEN_ID`` and ``PAD_LOGPROB``.
    """

    token_ids: torch.Tensor
    """[B, 1 + N] int64."""
    logprobs: torch.Tensor
    """[B, 1 + N] float32, natural logarithms."""
    ranks: torch.Tensor
    """[B] int64: how many tokens have a value at least the drawn one's, itself included."""


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One drawn token a row."""

    token_ids: torch.Tensor
    """[B] int64, each in [0, V) whatever the logits hold."""
    valid: torch.Tensor
    """[B] bool: False where the row held NaN, or nothing above -inf."""
    logprobs: LogprobsTensors | None = None
    log_kept_mass: torch.Tensor | None = None
    """[B] float32, with logprobs: log of the filtered set's share of the temperature-scaled mass.

    ``processed_logprobs = temperature_logprobs - log_kept_mass`` on the kept tokens.
    """
