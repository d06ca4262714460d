"""The distributions that a verification compares: what the target would sample from, and what a draft was drawn from.

Each is read at one token a row, and made in full only for the few rows whose residual is drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tokendraw_native.row_params import RowParams
from tokendraw_native.row_stats import RowStats
from tokendraw_native.rows import INF, clean, real_dtype, scaled


class Distribution(Protocol):
    """Probabilities of V tokens in each of some rows, in the widest float."""

    @property
    def valid(self) -> Tensor:
        """Return which rows are valid, as in ``SamplerOutput``: [rows] bool."""
        ...

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return the probability of the token ``ids[i]`` in the row ``rows[i]``: [n] from two [n] int64."""
        ...

    def probs(self, rows: Tensor) -> Tensor:
        """Return the probabilities of all tokens in the rows ``rows`` [n] int64: [n, V]."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessedLogits:
    """Logits after temperature and filters: exactly what ``sample`` draws from. Not for greedy rows."""

    logits: Tensor
    stats: RowStats
    params: RowParams

    @property
    def valid(self) -> Tensor:
        """Return which rows have no NaN and at least one value above -inf."""
        return self.stats.valid.squeeze(-1)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Compute the probability of one token a row."""
        ids = ids.unsqueeze(-1)
        return self._share(rows, ids, self.logits[rows.unsqueeze(-1), ids]).squeeze(-1)

    def probs(self, rows: Tensor) -> Tensor:
        """Compute the probabilities of all tokens."""
        ids = torch.arange(self.logits.shape[-1], device=rows.device)
        return self._share(rows, ids, self.logits[rows])

    def _share(self, rows: Tensor, ids: Tensor, logits: Tensor) -> Tensor:
        stats, inverse_temperature = self.stats.chunk(rows), self.params.chunk(rows).inverse_temperature
        x = clean(logits, finite=stats.finite)
        weight = scaled(x, stats.max, inverse_temperature, finite=stats.finite).exp_() * (
            x >= stats.threshold
        )
        share = weight / stats.tile_weights.sum(-1, keepdim=True)
        is_token_0 = (ids == 0).to(share.dtype)  # what is drawn from a row of nothing but -inf
        return torch.where(stats.max > -INF, share, is_token_0)


@dataclass(frozen=True, slots=True)
class GivenProbs:
    """Probabilities as the caller gave them, with 0 for NaN, negative and infinite ones."""

    given: Tensor

    @property
    def valid(self) -> Tensor:
        """Return which rows have finite entries, none negative and one positive."""
        largest = self.given.amax(-1)  # NaN where the row has one
        return (self.given.amin(-1) >= 0) & (largest > 0) & (largest < INF)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Look up the probability of one token a row."""
        return _cleaned(self.given[rows, ids])

    def probs(self, rows: Tensor) -> Tensor:
        """Look up the probabilities of all tokens."""
        return _cleaned(self.given[rows])


@dataclass(frozen=True, slots=True)
class Chosen:
    """Drafts that were chosen, not drawn: all the probability of a row is on one token."""

    ids: Tensor
    """[rows] int64."""
    vocab_size: int

    @property
    def valid(self) -> Tensor:
        """Return that all rows are valid."""
        return torch.ones_like(self.ids, dtype=torch.bool)

    def probs_at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return 1 for the chosen token, 0 for others."""
        return (self.ids[rows] == ids).to(real_dtype(ids.device))

    def probs(self, rows: Tensor) -> Tensor:
        """Return 1 for the chosen token of each row, 0 for the others."""
        tokens = torch.arange(self.vocab_size, device=rows.device)
        return (tokens == self.ids[rows].unsqueeze(-1)).to(real_dtype(rows.device))


def _cleaned(probs: Tensor) -> Tensor:
    return probs.to(real_dtype(probs.device)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp_(min=0.0)
