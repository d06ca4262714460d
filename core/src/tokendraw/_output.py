"""What a sampling step and a verification return. All tensors stay on the device of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAD_TOKEN_ID = -1
"""Fills ``LogprobsTensors.token_ids`` where a row asked for fewer entries than the widest row of its batch, and
``VerifyOutput.token_ids`` behind the last token of a request."""
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


@dataclass(frozen=True, slots=True)
class VerifyOutput:
    """What a verification makes of the drafts of B requests, each of which had at most K."""

    token_ids: torch.Tensor
    """[B, K + 1] int64: the accepted drafts, one token more, then ``PAD_TOKEN_ID``.

    The one more is the recovered token where a draft was rejected, else the bonus token. Each is in [0, V) whatever
    the logits hold.
    """
    num_accepted: torch.Tensor
    """[B] int32: accepted drafts; a request emits one token more than that."""
    valid: torch.Tensor
    """[B] bool: False where a row of target or draft was used that held NaN, or nothing above -inf.

    Used are the target rows from the first up to the one that made the last emitted token, and of the drafts' rows
    those beside them, unless the draft there is a placeholder or the request or the mode looks at no draft's row.
    """
    logprobs: LogprobsTensors | None = None
    """Of the emitted tokens: ``token_ids`` and ``logprobs`` [B, K + 1, 1 + N], ``ranks`` [B, K + 1], where behind the
    last token of a request stand ``PAD_TOKEN_ID``, ``PAD_LOGPROB`` and rank 0."""
