"""Drafts of designed rows, in every dtype and vocabulary."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tokendraw import SamplingMetadata
from tokendraw.plugin import GumbelDtype
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.crossing import factors
from tokendraw_testing.crossing.comparison import CrossedRequest, make_requests, stack_logits
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.crossing.table import rows_of_designs, threshold_rows
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")

_STREAMS: Final = (reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE)
_WIDE_SIZE: Final = 1 << 14


@properties.required("verify crossed drafts")
def crossed_drafts(subject: VerifySubject, trial: Trial) -> str:
    """Drafts of designed rows are kept tokens, and those of their seeds, in every dtype and vocabulary."""
    capabilities = subject.capabilities
    filters = tuple(pair for pair in capabilities.filters if pair[1] == "per_row")
    per_row = replace(capabilities, filters=filters)
    num_drafts, draft_sites = 0, _sites(subject)
    for site in draft_sites:
        rng = trial.generator(str(site))
        seed_torch(rng)
        rows = rows_of_designs(per_row, site, rng)
        rows += [] if site.size > _WIDE_SIZE else threshold_rows(per_row, site, rng)
        kinds = factors.kinds(per_row)[:2]  # drafts of greedy rows stand beside verifications
        batch = [request for row in rows for request in make_requests(row, kinds, rng)]
        require_drafts(subject, trial, batch)
        num_drafts += len(batch)
    return f"{num_drafts} drafts in {len(draft_sites)} dtypes and vocabularies"


def _sites(subject: VerifySubject) -> list[Site]:
    """List all sites; for a quick run only the widest of the wide vocabularies."""
    all_sites = factors.sites(subject.capabilities, subject.effort)
    widest_size = max(site.size for site in all_sites)
    return [
        site
        for site in all_sites
        if not subject.effort.quick or site.size in (widest_size, min(site.size, _WIDE_SIZE))
    ]


def require_drafts(
    subject: VerifySubject, trial: Trial, batch: list[CrossedRequest], dtype: GumbelDtype | None = None
) -> None:
    """Require a kept token of each row, or the token of its seed and of this precision of the noise."""
    metadata = SamplingMetadata.from_params(
        [request.params for request in batch],
        device=subject.device,
        positions=[request.position for request in batch],
    )
    logits, dtype = stack_logits(batch, subject.device), dtype or subject.gumbel_dtype
    tokens = subject.draft(logits, metadata, gumbel_dtype=dtype).token_ids.tolist()
    drawings = [reference.drawing(r.row.prepared, r.position, _STREAMS) for r in batch]
    answers = reference.together(drawings, [r.params.seed or 0 for r in batch], dtype)
    for request, token, (expected, lead) in zip(batch, tokens, answers, strict=True):
        possible = request.row.expected.possible
        trial.require(
            possible[token], f"a draft of {request} needs one of {possible.sum()} kept tokens, found {token}"
        )
        is_free = request.params.seed is None or not request.row.is_settled or lead < reference.NEAR_TIE
        trial.require(
            is_free or token == expected, f"a draft of {request} needs token {expected}, found {token}"
        )
