"""Drafts of designed rows, in every dtype and vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tokendraw import SamplingMetadata
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.crossing import factors
from tokendraw_testing.crossing.comparison import Request, requested, stacked
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.crossing.table import by_value, designed
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.verify.verifying import Verifying

properties = Properties("verify")

_STREAMS: Final = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
_WIDE: Final = 1 << 14


@properties.required("verify crossed drafts")
def crossed_drafts(subject: Verifying, trial: Trial) -> str:
    """Drafts of designed rows are kept tokens, and those of their seeds, in every dtype and vocabulary."""
    offered = subject.capabilities
    per_row = replace(offered, filters=tuple(pair for pair in offered.filters if pair[1] == "per_row"))
    looked, found = 0, _sites(subject)
    for site in found:
        rng = trial.generator(str(site))
        seed_torch(rng)
        rows = designed(per_row, site, rng)
        rows += [] if site.size > _WIDE else by_value(per_row, site, rng)
        kinds = factors.kinds(per_row)[:2]  # drafts of greedy rows stand beside verifications
        batch = [request for row in rows for request in requested(row, kinds, rng)]
        _require_drafts(subject, trial, batch)
        looked += len(batch)
    return f"{looked} drafts in {len(found)} dtypes and vocabularies"


def _sites(subject: Verifying) -> list[Site]:
    """List all sites; for a quick run one vocabulary of the wide ones."""
    every = factors.sites(subject.capabilities, subject.effort)
    widest = max(site.size for site in every)
    return [
        site for site in every if not subject.effort.quick or site.size in (widest, min(site.size, _WIDE))
    ]


def _require_drafts(subject: Verifying, trial: Trial, batch: list[Request]) -> None:
    """Demand a kept token of each row, and that of its seed."""
    metadata = SamplingMetadata.from_params(
        [request.params for request in batch],
        device=subject.device,
        positions=[request.position for request in batch],
    )
    found = subject.draft(stacked(batch, subject.device), metadata).token_ids.tolist()
    drawings = [reference.drawing(r.row.prepared, r.position, _STREAMS) for r in batch]
    needed = reference.together(drawings, [r.params.seed or 0 for r in batch], subject.gumbel_dtype)
    for request, token, (known, lead) in zip(batch, found, needed, strict=True):
        possible = request.row.expected.possible
        trial.require(
            possible[token],
            f"a draft of {request} needs one of {possible.sum()} kept tokens, found {token}",
        )
        is_free = request.params.seed is None or not request.row.is_settled or lead < reference.NEAR_TIE
        trial.require(is_free or token == known, f"a draft of {request} needs token {known}, found {token}")
