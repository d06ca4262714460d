"""Helpers for plugins to fill a :class:`~tokendraw.LogprobsTensors`: best tokens, values by mode, padding, steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokendraw.backends.description import LogprobsMode
from tokendraw.output import PAD_LOGPROB, PAD_TOKEN_ID, LogprobsTensors

_INF = float("inf")


class RowMasses(NamedTuple):
    """The maximum, threshold and masses (in the widest float) of each row, for values in any mode: [rows, 1] each.

    :ivar max: float32: the largest value.
    :ivar threshold: float32: a token is kept if its value is at least this, and at most ``ceiling``.
    :ivar kept: Sum of ``exp((x - m) / T)`` over the kept tokens; m is the ceiling, or max x where there is none.
    :ivar mass: Sum of ``exp((x - max x) / T)`` over all tokens.
    :ivar raw: Sum of ``exp(x - max x)`` over all tokens.
    :ivar ceiling: float32: the greatest kept value; None: every row keeps its largest value.
    """

    max: Tensor
    threshold: Tensor
    kept: Tensor
    mass: Tensor
    raw: Tensor
    ceiling: Tensor | None = None

    @property
    def peak(self) -> Tensor:
        """Return the greatest kept value of each row."""
        return self.max if self.ceiling is None else self.ceiling

    def log_kept(self, inverse_temperature: Tensor) -> Tensor:
        """Return the log of the sum of ``exp((x - max x) / T)`` over the kept tokens."""
        if self.ceiling is None:
            return self.kept.log()
        peak = self.ceiling.to(inverse_temperature.dtype)
        return self.kept.log() + _relative(peak, self.max, inverse_temperature)

    def chunk(self, rows: slice) -> RowMasses:
        """Return the values of some of the rows."""
        columns = {name: column for name, column in self._asdict().items() if column is not None}
        return self._replace(**{name: column[rows] for name, column in columns.items()})

    def keeps(self, x: Tensor) -> Tensor:
        """Return the tokens of [rows, n] logits that the filters keep."""
        kept = x >= self.threshold
        return kept if self.ceiling is None else kept & (x <= self.ceiling)


def best_token_ids(x: Tensor, n: int) -> Tensor:
    """Return the ids of the ``n`` largest values of each row in descending order, the lowest id first on a tie.

    ``topk`` promises nothing about ties, so it is given distinct integers: the value above, the reversed id below.

    :param x: [rows, V] float32 without NaN.
    :returns: [rows, n] int64.
    """
    bits = (x + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    ids = torch.arange(x.shape[-1], device=x.device)
    return ((ordered << 32) | ((1 << 31) - ids)).topk(n).indices


def least_shown(row: RowMasses, temperature: Tensor, mode: LogprobsMode) -> Tensor:
    """Return the least logit shown by a mode as more than -inf, [rows, 1] float32.

    Below it lie the tokens that a filter dropped, and those whose quotient float32 does not hold, as beside +inf.
    Tokens shown as -inf are ordered by their ids.

    :param temperature: [rows, 1] in the widest float, positive and finite.
    """
    if mode == "raw_logits":
        return torch.full_like(row.max, -_INF)
    if mode.startswith("raw"):
        temperature = torch.ones_like(temperature)
    peak = row.peak if mode == "processed_logprobs" else row.max
    least = (peak.to(temperature.dtype) - torch.finfo(torch.float32).max * temperature).to(torch.float32)
    return torch.maximum(least, row.threshold) if mode.startswith("processed") else least


def mode_values(x: Tensor, row: RowMasses, inverse_temperature: Tensor, mode: LogprobsMode) -> Tensor:
    """Compute a mode's value of each logit ``x`` [rows, n] float32 without NaN, in the widest float.

    Log-probabilities are at most 0, however the masses were rounded.

    :param inverse_temperature: [rows, 1] in the widest float, positive and finite.
    """
    x = x.to(inverse_temperature.dtype)
    if mode == "raw_logits":
        return x
    if mode == "raw_logprobs":
        return (_relative(x, row.max) - row.raw.log()).clamp_(max=0.0)
    # What is kept is relative to its own largest value: from the row's, a tiny T would leave no difference.
    y = _relative(x, row.peak if mode == "processed_logprobs" else row.max, inverse_temperature)
    if mode == "temperature_logprobs":
        return (y - row.mass.log()).clamp_(max=0.0)
    if mode == "processed_logprobs":
        y = (y - row.kept.log()).clamp_(max=0.0)
    return torch.where(row.keeps(x), y, -_INF)


def _relative(x: Tensor, x_max: Tensor, inverse_temperature: Tensor | None = None) -> Tensor:
    y = x - x_max if inverse_temperature is None else (x - x_max) * inverse_temperature
    return y.nan_to_num_(nan=0.0, neginf=-_INF)  # infinity minus itself


def pad_logprobs(token_ids: Tensor, logprobs: Tensor, asked: Tensor | None) -> tuple[Tensor, Tensor]:
    """Replace unrequested columns of each row by ``PAD_TOKEN_ID`` and ``PAD_LOGPROB``.

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
    """Rearrange the logprobs of the rows of a verification by request and step, for its output.

    :param rows: tensors whose first dimension is the L rows of logits.
    :param cu_num_logits: [B + 1] integer, as in :class:`tokendraw.Drafts`.
    :param num_accepted: [B] integer.
    :param max_drafts: K.
    :returns: the same tensors with dimensions [B, K + 1] first; padding, and rank 0, after the last emitted token.
    """
    row, is_emitted = _emitted_rows(cu_num_logits, num_accepted, max_drafts, len(rows.token_ids))

    def by_step(tensor: Tensor | None, padding: float) -> Any:
        if tensor is None:
            return None
        is_here = is_emitted if tensor.dim() == 1 else is_emitted.unsqueeze(-1)
        return torch.where(is_here, tensor[row], padding)

    return LogprobsTensors(
        by_step(rows.token_ids, PAD_TOKEN_ID),
        by_step(rows.logprobs, PAD_LOGPROB),
        by_step(rows.ranks, 0),
        by_step(rows.given_token_ids, PAD_TOKEN_ID),
        by_step(rows.given_logprobs, PAD_LOGPROB),
    )


def log_kept_mass_by_step(
    log_kept_mass: Tensor, cu_num_logits: Tensor, num_accepted: Tensor, max_drafts: int
) -> Tensor:
    """Rearrange the kept masses of the rows of a verification by request and step, for its output.

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
