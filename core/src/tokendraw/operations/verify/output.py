"""The output of a verification. All tensors stay on the device of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokendraw.output import LogprobsTensors

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class VerifyOutput:
    """The outcome of a verification of B requests with at most K drafts each.

    :ivar token_ids: [B, K + 1] int64: the accepted drafts, one further token, then ``PAD_TOKEN_ID``. The further token
        is the recovered token where a draft was rejected, else the bonus token. Each is in [0, V) whatever the logits
        hold.
    :ivar num_accepted: [B] int32: number of accepted drafts; a request emits ``num_accepted + 1`` tokens.
    :ivar valid: [B] bool: False where a row of target or draft was used that held NaN, or nothing above -inf. Used are
        the target rows from the first up to the one that made the last emitted token, and of the drafts' rows those
        beside them, unless the draft there is a placeholder or the request or the mode looks at no draft's row.
    :ivar logprobs: Log-probabilities of the emitted tokens: ``token_ids`` and ``logprobs`` [B, K + 1, 1 + N], ``ranks``
        [B, K + 1], padded behind the last token of a request with ``PAD_TOKEN_ID``, ``PAD_LOGPROB`` and rank 0.
    :ivar log_kept_mass: [B, K + 1] float32, with logprobs: log of the filtered set's share of the temperature-scaled
        mass, at most 0, of the target's row that made each emitted token; ``PAD_LOGPROB`` behind the last token of a
        request. ``processed_logprobs = temperature_logprobs - log_kept_mass`` on the kept tokens.
    """

    token_ids: torch.Tensor
    num_accepted: torch.Tensor
    valid: torch.Tensor
    logprobs: LogprobsTensors | None = None
    log_kept_mass: torch.Tensor | None = None
