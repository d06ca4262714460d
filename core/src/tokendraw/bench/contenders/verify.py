"""A verification as a call on one buffer, which holds the target's logits and below them the drafts'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw.bench import logits as _logits
from tokendraw.bench.cells import VerifyCell
from tokendraw.operations.verify.drafts import Drafts
from tokendraw.operations.verify.limits import undrafted

if TYPE_CHECKING:
    from tokendraw._exchange.output import VerifyOutput
    from tokendraw._loading.sampler import Sampler
    from tokendraw._serving.routing import Serving


def verification(
    sampler: Sampler, cell: VerifyCell, metadata: SamplingMetadata, drafts: Drafts
) -> Callable[[Tensor], VerifyOutput]:
    """What verifies the drafts of a cell.

    :param metadata: of the target's rows.
    :param drafts: as :func:`drafts_of` makes them.
    """
    rows = cell.num_target_rows

    def verify(logits: Tensor) -> VerifyOutput:
        own = drafts if cell.mode == "coupled" else replace(drafts, draft_logits=logits[rows:])
        return sampler.verify(logits[:rows], own, metadata, mode=cell.mode)

    return verify


def drafts_of(cell: VerifyCell, device: torch.device) -> Drafts:
    """The drafts of every buffer, still without logits."""
    ids = _logits.draft_ids(cell, device)
    return Drafts.from_counts(ids, [cell.drafts] * cell.batch, any_placeholder=False)


def lacking(serving: Serving, cell: VerifyCell, drafts: Drafts) -> str | None:
    """What of the drafts the chosen verifier does not serve by itself, or None."""
    if serving.capabilities is None:
        return None
    if cell.mode == "rejection":
        drafts = replace(
            drafts, draft_logits=torch.empty(len(drafts.draft_token_ids), 1, device=drafts.device)
        )
    return undrafted(serving.capabilities, drafts, cell.mode)
