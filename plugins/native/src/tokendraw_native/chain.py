"""Assigns rows of target logits to requests and drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tokendraw import Drafts, speculative

NO_DRAFT = -1


@dataclass(frozen=True, slots=True)
class Chain:
    """The L rows of B requests with at most K drafts each. All tensors are int64."""

    request: Tensor
    """[L]: the request of each row."""
    offset: Tensor
    """[L]: the index of each row among those of its request."""
    drafted: Tensor
    """[L]: the id that each row judges, :data:`NO_DRAFT` in bonus rows."""
    first: Tensor
    """[B]: first row of each request."""
    num_drafts: Tensor
    """[B]."""
    steps: Tensor
    """[K + 1]: 0 .. K."""

    @classmethod
    def of(cls, drafts: Drafts, rows: int) -> Chain:
        """Assign the drafts to ``rows`` rows of logits."""
        cu_num_logits = drafts.cu_num_logits.to(torch.int64)
        first, num_drafts = cu_num_logits[:-1], (cu_num_logits.diff() - 1).clamp_(0, drafts.max_drafts)
        request = speculative.row_index(cu_num_logits, rows)
        row = torch.arange(rows, device=request.device)
        offset = row - first[request]
        ids = pad(drafts.draft_token_ids.to(torch.int64), (0, 1), value=NO_DRAFT)
        column = (offset if ids.dim() == 2 else row - request).clamp(max=ids.shape[-1] - 1)
        draft_ids = ids[request, column] if ids.dim() == 2 else ids[column]
        return cls(
            request=request,
            offset=offset,
            drafted=torch.where(offset < num_drafts[request], draft_ids, NO_DRAFT),
            first=first,
            num_drafts=num_drafts,
            steps=torch.arange(drafts.max_drafts + 1, device=request.device),
        )

    def by_step(self, values: Tensor) -> Tensor:
        """Rearrange ``values`` [L, ...] by request and step: [B, K + 1, ...]. After a request's own rows come any."""
        rows = (self.first.unsqueeze(-1) + self.steps).clamp(max=max(len(values) - 1, 0))
        return values[rows]

    def up_to(self, count: Tensor) -> Tensor:
        """Return [B, K + 1] bool: True in the first ``count`` [B] steps of each request."""
        return self.steps < count.unsqueeze(-1)


def num_accepted(chain: Chain, accepted: Tensor) -> Tensor:
    """Count the accepted drafts of each request up to its first rejection; ``accepted`` is [L] bool: [B] int64."""
    return (chain.by_step(accepted) & chain.up_to(chain.num_drafts)).cumprod(-1).sum(-1)
