"""The distributions that a verification compares: what the target would sample from, and what a draft was drawn from.

Each is looked up at one token a row, and laid out in full for the few rows whose residual is drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tokendraw_native.request import Request
from tokendraw_native.rows import INF, clean, real_dtype, scaled
from tokendraw_native.survey import Survey


class Distribution(Protocol):
    """Probabilities of V tokens in each of some rows, in the widest float."""

    @property
    def valid(self) -> Tensor:
        """[rows] bool."""
        ...

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """[n]: of the token ``ids[i]`` in the row ``rows[i]``, both [n] int64."""
        ...

    def of(self, rows: Tensor) -> Tensor:
        """[n, V]: of all tokens in the rows ``rows`` [n] int64."""
        ...


@dataclass(frozen=True, slots=True)
class Processed:
    """Logits after temperature and filters: exactly what ``sample`` draws from. Greedy rows are not served."""

    logits: Tensor
    survey: Survey
    request: Request

    @property
    def valid(self) -> Tensor:
        """As in ``SamplerOutput``."""
        return self.survey.valid.squeeze(-1)

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """[n]."""
        ids = ids.unsqueeze(-1)
        return self._share(rows, ids, self.logits[rows.unsqueeze(-1), ids]).squeeze(-1)

    def of(self, rows: Tensor) -> Tensor:
        """[n, V]."""
        ids = torch.arange(self.logits.shape[-1], device=rows.device)
        return self._share(rows, ids, self.logits[rows])

    def _share(self, rows: Tensor, ids: Tensor, logits: Tensor) -> Tensor:
        found = self.survey.chunk(rows)
        x, inverse_temperature = (
            clean(logits, finite=found.finite),
            self.request.chunk(rows).inverse_temperature,
        )
        weight = scaled(x, found.top, inverse_temperature, finite=found.finite).exp_() * (x >= found.floor)
        share = weight / found.tile_weights.sum(-1, keepdim=True)
        return torch.where(
            found.top > -INF, share, (ids == 0).to(share.dtype)
        )  # where nothing is, 0 is drawn


@dataclass(frozen=True, slots=True)
class Given:
    """Probabilities as the caller gave them, but that NaN, negative and infinite ones count as 0."""

    probs: Tensor

    @property
    def valid(self) -> Tensor:
        """Every entry is a finite number, none is negative, one is positive."""
        largest = self.probs.amax(-1)  # NaN where the row has one
        return (self.probs.amin(-1) >= 0) & (largest > 0) & (largest < INF)

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """[n]."""
        return _cleaned(self.probs[rows, ids])

    def of(self, rows: Tensor) -> Tensor:
        """[n, V]."""
        return _cleaned(self.probs[rows])


@dataclass(frozen=True, slots=True)
class Chosen:
    """All the probability of a row is on one token: drafts that were not drawn."""

    ids: Tensor
    """[rows] int64."""
    vocab_size: int

    @property
    def valid(self) -> Tensor:
        """Always."""
        return torch.ones_like(self.ids, dtype=torch.bool)

    def at(self, rows: Tensor, ids: Tensor) -> Tensor:
        """[n]."""
        return (self.ids[rows] == ids).to(real_dtype(ids.device))

    def of(self, rows: Tensor) -> Tensor:
        """[n, V]."""
        tokens = torch.arange(self.vocab_size, device=rows.device)
        return (tokens == self.ids[rows].unsqueeze(-1)).to(real_dtype(rows.device))


def _cleaned(probs: Tensor) -> Tensor:
    return probs.to(real_dtype(probs.device)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp_(min=0.0)
