"""The outputs of draws and verifications. All tensors stay on the device of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tokendraw.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

PAD_TOKEN_ID = -1
"""Fills ``LogprobsTensors.token_ids`` where a row asked for fewer entries than the widest row of its batch, and
what requests with drafts emit behind their last token."""
PAD_LOGPROB = float("-inf")
"""Fills ``LogprobsTensors.logprobs`` in the same places."""


class TokenLogprob(NamedTuple):
    """A token of a row, as listed by :meth:`LogprobsTensors.row`.

    :ivar token_id: Id of the token, in [0, V).
    :ivar logprob: Natural logarithm, or a logit, by ``logprobs_mode``.
    :ivar rank: For the drawn token, the number of tokens with a value at least that of the drawn one, which counts too;
        None if not counted. For the n-th best token, n: among equal tokens the lower id has the lower rank. None for an
        id of ``SamplingParams.logprob_token_ids``.
    """

    token_id: int
    logprob: float
    rank: int | None


@dataclass(frozen=True, slots=True)
class LogprobsTensors:
    """Log-probabilities (or logits, by ``logprobs_mode``) of the drawn token and of the N best.

    N is the largest ``SamplingParams.logprobs`` of the batch, and at most V. Column 0 is the drawn token and is filled
    for every row; the best follow in descending order, the lowest id first on a tie. Beyond what a row asked for stand
    ``PAD_TOKEN_ID`` and ``PAD_LOGPROB``. :meth:`row` lists a row without them.

    :ivar token_ids: [B, 1 + N] int64: the drawn token, then the N best tokens in descending order.
    :ivar logprobs: [B, 1 + N] float32: natural logarithms, at most 0, or logits, by ``logprobs_mode``; of the tokens in
        ``token_ids``.
    :ivar ranks: [B] int64: number of tokens with a value at least that of the drawn token, which counts too. None where
        the sampler was allowed to leave ranks out (``Need.logprob_ranks=False``) and did.
    :ivar given_token_ids: [B, M] int64: the ``SamplingParams.logprob_token_ids`` of each row in their order, padded
        with ``PAD_TOKEN_ID``; M is the largest number of them in the batch. None where no row has any.
    :ivar given_logprobs: [B, M] float32: of the tokens in ``given_token_ids``, padded with ``PAD_LOGPROB``.
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor | None
    given_token_ids: torch.Tensor | None = None
    given_logprobs: torch.Tensor | None = None

    def cpu(self) -> LogprobsTensors:
        """Copy each tensor to the host, once; this waits for the device."""
        others = (self.ranks, self.given_token_ids, self.given_logprobs)
        copies = (None if tensor is None else tensor.cpu() for tensor in others)
        return LogprobsTensors(self.token_ids.cpu(), self.logprobs.cpu(), *copies)

    def row(self, index: int, step: int | None = None) -> list[TokenLogprob]:
        """List the logprobs requested for a row: the drawn token, the best tokens, the given ones; without padding.

        :param index: of the row, or of the request of a verification.
        :param step: of a verification: which of the request's tokens; behind the last one the list is empty.
        :raises InvalidInputError: the tensors are not on the host, where each row would wait for the device; or
            ``step`` is given for what has no steps, or is not for what has.
        :raises IndexError: there is no such row or step.
        """
        if not self.token_ids.is_cpu:
            raise InvalidInputError(
                f"'row' needs logprobs on the host, found them on {self.token_ids.device}. "
                "Call .cpu() once, and row() on what it returns."
            )
        has_steps = self.token_ids.dim() == 3
        if has_steps != (step is not None):
            words = "a step, since these logprobs are of a verification" if has_steps else "no step"
            call = "i, step" if has_steps else "i"
            raise InvalidInputError(f"'row' needs {words}, found {step}. Call row({call}).")
        entry = index if step is None else (index, step)
        ids, values = self.token_ids[entry].tolist(), self.logprobs[entry].tolist()
        ranks = [None if self.ranks is None else int(self.ranks[entry]), *range(1, len(ids))]
        if self.given_token_ids is not None and self.given_logprobs is not None:
            given_ids = self.given_token_ids[entry].tolist()
            ids, values = ids + given_ids, values + self.given_logprobs[entry].tolist()
            ranks += [None] * len(given_ids)
        tokens = map(TokenLogprob, ids, values, ranks)
        return [token for token in tokens if token.token_id != PAD_TOKEN_ID]


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """The output of a sampling step: a drawn token for each row.

    :ivar token_ids: [B] int64, each in [0, V) whatever the logits hold.
    :ivar valid: [B] bool: False in rows with NaN, or nothing above -inf, of samplers with ``Capabilities.valid_flag``.
    :ivar logprobs: Log-probabilities of the drawn token and of the best ones; None where no row asked for any.
    :ivar log_kept_mass: [B] float32, with logprobs: log of the filtered set's share of the temperature-scaled mass, at
        most 0. ``processed_logprobs = temperature_logprobs - log_kept_mass`` on the kept tokens.
    :ivar threshold: [B] float32, of a sampler that was loaded with ``Need(threshold=True)``, else None: the least logit
        that was kept, which is the whole sampling mask of the row: see :func:`tokendraw.kept_mask`. -inf where every
        token above -inf was kept; the largest logit in a greedy row; +inf in a row with +inf, and NaN in a row with
        nothing above -inf.
    :ivar ceiling: [B] float32, beside ``threshold`` where a row of the batch may have ``typical_p`` or
        ``xtc_probability``, else None: the greatest logit that was kept, NaN in a row with nothing above -inf; +inf in
        rows without these filters, which keep their largest logits.
    """

    token_ids: torch.Tensor
    valid: torch.Tensor
    logprobs: LogprobsTensors | None = None
    log_kept_mass: torch.Tensor | None = None
    threshold: torch.Tensor | None = None
    ceiling: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """The scores of a token for each row.

    :ivar logprobs: Log-probabilities of the token of each row, in column 0, and of the best tokens, as in
        :class:`SamplerOutput`.
    :ivar log_kept_mass: [L] float32: log of the filtered set's share of the temperature-scaled mass, at most 0.
    :ivar entropy: [L] float32, in nats, of the softmax of the logprobs mode: of the logits at T = 1 in raw modes, at
        the temperature of the row, or of the kept tokens in processed modes. 0 in a greedy row, unless the mode is raw;
        NaN in a row with nothing above -inf.
    :ivar threshold: [L] float32, of a sampler that was loaded with ``Need(threshold=True)``, else None: the least kept
        logit of each row, as in :class:`SamplerOutput`.
    :ivar ceiling: [L] float32 or None: the greatest kept logit of each row, as in :class:`SamplerOutput`.
    """

    logprobs: LogprobsTensors
    log_kept_mass: torch.Tensor
    entropy: torch.Tensor
    threshold: torch.Tensor | None = None
    ceiling: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class VerifyOutput:
    """The outcome of a verification of B requests with at most K drafts each.

    :ivar token_ids: [B, K + 1] int64: the accepted drafts, one further token, then ``PAD_TOKEN_ID``. The further token
        is the recovered token where a draft was rejected, else the bonus token. Each is in [0, V).
    :ivar num_accepted: [B] int32: number of accepted drafts; a request emits ``num_accepted + 1`` tokens.
    :ivar valid: [B] bool: False where a row of target or draft was used that held NaN, or nothing above -inf. Used are
        the target rows from the first up to the one that made the last emitted token, and of the drafts' rows those
        beside them, unless the draft there is a placeholder or the request or the mode looks at no draft's row.
    :ivar logprobs: Log-probabilities of the emitted tokens: ``token_ids`` and ``logprobs`` [B, K + 1, 1 + N], ``ranks``
        [B, K + 1], padded behind the last token of a request with ``PAD_TOKEN_ID``, ``PAD_LOGPROB`` and rank 0.
    :ivar log_kept_mass: [B, K + 1] float32, with logprobs: log of the filtered set's share of the temperature-scaled
        mass, at most 0, of the target's row that made each emitted token; ``PAD_LOGPROB`` behind the last token of a
        request. ``processed_logprobs = temperature_logprobs - log_kept_mass`` on the kept tokens.
    :ivar threshold: [L] float32, of a sampler that was loaded with ``Need(threshold=True)``, else None: the least kept
        logit of each row of the target, as in :class:`SamplerOutput`.
    :ivar ceiling: [L] float32 or None: the greatest kept logit of each row of the target, likewise.
    """

    token_ids: torch.Tensor
    num_accepted: torch.Tensor
    valid: torch.Tensor
    logprobs: LogprobsTensors | None = None
    log_kept_mass: torch.Tensor | None = None
    threshold: torch.Tensor | None = None
    ceiling: torch.Tensor | None = None
