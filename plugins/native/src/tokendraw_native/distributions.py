"""The distributions of a verification: of the target's samples, and of the drafts.

A distribution is read at a token in each row, and made in full only for the rows that draw from a residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tokendraw.row_parameters import RowParameters, widest_float
from tokendraw_native.row_stats import RowStats
from tokendraw_native.rows import INF, clean, scale


class Distribution(Protocol):
    """Probabilities of V tokens in each of some rows, in the widest float."""

    @property
    def valid(self) -> Tensor:
        """Return the valid rows, as in ``SamplerOutput``: [rows] bool."""
        ...

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return the probability of the token ``ids[i]`` in the row ``rows[i]``: [n] from two [n] int64."""
        ...

    def probs(self, rows: Tensor) -> Tensor:
        """Return the probabilities of all tokens in the rows ``rows`` [n] int64: [n, V]."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessedLogits:
    """The distribution of ``sample``: logits after temperature and filters. Not for greedy rows."""

    logits: Tensor
    stats: RowStats
    params: RowParameters

    @property
    def valid(self) -> Tensor:
        """Return the rows without NaN and with a value above -inf."""
        return self.stats.valid.squeeze(-1)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Compute the probability of a token in each row."""
        ids = ids.unsqueeze(-1)
        return self._probs(rows, ids, self.logits[rows.unsqueeze(-1), ids]).squeeze(-1)

    def probs(self, rows: Tensor) -> Tensor:
        """Compute the probabilities of all tokens."""
        ids = torch.arange(self.logits.shape[-1], device=rows.device)
        return self._probs(rows, ids, self.logits[rows])

    def _probs(self, rows: Tensor, ids: Tensor, logits: Tensor) -> Tensor:
        stats, inverse_temperature = self.stats.chunk(rows), self.params.chunk(rows).inverse_temperature
        x = clean(logits, finite=stats.finite)
        y = scale(x, stats.peak, inverse_temperature, finite=stats.finite)
        weight = y.masked_fill_(stats.drops(x), -INF).exp_()
        probs = weight / stats.tile_weights.sum(-1, keepdim=True)
        is_token_0 = (ids == 0).to(probs.dtype)  # a row of -inf throughout draws token 0
        return torch.where(stats.max > -INF, probs, is_token_0)


@dataclass(frozen=True, slots=True)
class DraftProbs:
    """The caller's probabilities, with 0 for NaN, negative and infinite entries."""

    values: Tensor

    @property
    def valid(self) -> Tensor:
        """Return the rows of finite entries, without a negative and with a positive entry."""
        largest = self.values.amax(-1)  # NaN where the row has one
        return (self.values.amin(-1) >= 0) & (largest > 0) & (largest < INF)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Look up the probability of a token in each row."""
        return _clean_probs(self.values[rows, ids])

    def probs(self, rows: Tensor) -> Tensor:
        """Look up the probabilities of all tokens."""
        return _clean_probs(self.values[rows])


@dataclass(frozen=True, slots=True)
class ChosenDrafts:
    """Drafts chosen without a draw: a row has all its probability on its draft."""

    ids: Tensor
    """[rows] int64."""
    vocab_size: int

    @property
    def valid(self) -> Tensor:
        """Return True in every row."""
        return torch.ones_like(self.ids, dtype=torch.bool)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return 1 for the chosen token, else 0."""
        return (self.ids[rows] == ids).to(widest_float(ids.device))

    def probs(self, rows: Tensor) -> Tensor:
        """Return 1 for the chosen token of each row, else 0."""
        tokens = torch.arange(self.vocab_size, device=rows.device)
        return (tokens == self.ids[rows].unsqueeze(-1)).to(widest_float(rows.device))


def _clean_probs(probs: Tensor) -> Tensor:
    return probs.to(widest_float(probs.device)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp_(min=0.0)
