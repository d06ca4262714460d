"""Requests crossed over dtypes, vocabularies, values, kinds and sizes of batches, by a covering table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tokendraw._exchange.capabilities import GumbelDtype, LogprobsMode
from tokendraw._exchange.params import SamplingParams
from tokendraw.testing.crossing.comparison import Request, Shown, requested, require_shown, require_token
from tokendraw.testing.crossing.covering import covering
from tokendraw.testing.crossing.factors import Factors, Site, allowed, kinds, request_factors, sites
from tokendraw.testing.crossing.rows import DESIGNS, CrossedRow, crossed_row
from tokendraw.testing.kit.property import Properties
from tokendraw.testing.kit.trial import Trial
from tokendraw.testing.rows.draws import seed_torch
from tokendraw.testing.rows.requests import has_logprobs, scalar_filters, tokens_of
from tokendraw.testing.rows.sampling import Sampling

properties = Properties("sample")

_SHOWN = (5, 0, 21, 1, None, 50, 5, 200, -1)
"""Numbers of best tokens that rows ask for; a batch in which none asks shows nothing."""


def factors(subject: Sampling) -> Factors:
    """Return the factors that rows of logits are crossed over."""
    asked = request_factors(subject.capabilities)
    designs = [design for design in DESIGNS if design.needs is None or len(asked[design.needs]) > 1]
    return {"site": sites(subject.capabilities, subject.effort), "design": designs, **asked}


def table(subject: Sampling, rng: np.random.Generator) -> dict[Site, list[CrossedRow]]:
    """Make the rows of a covering table, by site."""
    cases = covering(factors(subject), rng, allowed)
    limit = subject.effort.crossed_rows
    if limit is not None:
        cases = [cases[i] for i in rng.permutation(len(cases))[:limit]]
    found: dict[Site, list[CrossedRow]] = {}
    for case in cases:
        found.setdefault(case["site"], []).append(crossed_row(case, rng, subject.capabilities.tie_rule))
    return found


@properties.required("crossed requests")
def crossed_requests(subject: Sampling, trial: Trial) -> str:
    """Every row of a large batch draws a kept token, its argmax, or its seed's token, over a table of pairs."""
    rng = trial.generator("table")
    rows = table(subject, rng)
    offered = kinds(subject.capabilities)
    looked = named = 0
    seed_torch(rng)
    for site, crossed in rows.items():
        size = subject.effort.batch_of(site.size)
        copies = -(-size // len(crossed))
        batch = [
            request
            for i, row in enumerate(crossed)
            for request in requested(row, [offered[(i + j) % len(offered)] for j in range(copies)], rng)
        ]
        batch = [batch[i] for i in rng.permutation(len(batch))]
        looked += len(batch)
        named += judge_call(subject, trial, batch, subject.gumbel_dtype)
        for dtype in subject.capabilities.gumbel_dtypes:
            if dtype != subject.gumbel_dtype and "seeded" in offered:
                again = [request for row in crossed for request in requested(row, ["seeded"], rng)]
                looked += len(again)
                named += judge_call(subject, trial, again, dtype)
    cases = sum(map(len, rows.values()))
    return f"{looked} rows of {cases} cases in {len(rows)} dtypes and vocabularies, {named} of them of known token"


@properties.advertised("crossed logprobs", has_logprobs)
def crossed_logprobs(subject: Sampling, trial: Trial) -> str:
    """Values, N best, ranks, log_kept_mass and tokens hold in every mode, over a table of pairs."""
    rng = trial.generator("table")
    rows = table(subject, rng)
    offered = kinds(subject.capabilities)
    modes = subject.capabilities.logprobs_modes
    looked = 0
    seed_torch(rng)
    for number, crossed in enumerate(rows.values()):
        for turn, mode in enumerate(modes):
            batch = [
                request.showing(_SHOWN[(number + turn + i) % len(_SHOWN)])
                for i, row in enumerate(crossed)
                for request in requested(row, [offered[(i + turn) % len(offered)]], rng)
            ]
            dtypes = subject.capabilities.gumbel_dtypes
            judge_logprobs(subject, trial, batch, mode, dtypes[(number + turn) % len(dtypes)])
            looked += len(batch)
    return f"{looked} rows in {len(modes)} modes over {len(rows)} dtypes and vocabularies"


def judge_call(subject: Sampling, trial: Trial, batch: Sequence[Request], dtype: GumbelDtype) -> int:
    """Draw all of a batch in one call and judge every row; return how many tokens were known."""
    logits, params = stacked(subject, batch)
    positions = [request.position for request in batch]
    found = tokens_of(subject, logits, params, positions, gumbel_dtype=dtype)
    return sum(
        require_token(trial, request, int(token), dtype, f"row {i} of {len(batch)}: ")
        for i, (request, token) in enumerate(zip(batch, found, strict=True))
    )


def judge_logprobs(
    subject: Sampling, trial: Trial, batch: Sequence[Request], mode: LogprobsMode, dtype: GumbelDtype
) -> None:
    """Draw a batch whose requests ask for logprobs, and judge every row by all that it shows."""
    for part in by_scalar_filters(subject, batch):
        logits, params = stacked(subject, part)
        positions = [request.position for request in part]
        output = subject.sample(logits, params, positions, mode=mode, gumbel_dtype=dtype)
        tokens, valid = output.token_ids.tolist(), output.valid.tolist()
        assert output.logprobs is not None
        assert output.logprobs.ranks is not None
        assert output.log_kept_mass is not None
        ids, values = output.logprobs.token_ids.cpu().numpy(), output.logprobs.logprobs.cpu().numpy()
        ranks, masses = output.logprobs.ranks.tolist(), output.log_kept_mass.tolist()
        for i, request in enumerate(part):
            where = f"row {i} of {len(part)}: "
            require_token(trial, request, tokens[i], dtype, where)
            shown = Shown(mode, ids[i], values[i], ranks[i], masses[i], valid[i])
            require_shown(trial, request, tokens[i], shown, where)


def by_scalar_filters(subject: Sampling, batch: Sequence[Request]) -> list[list[Request]]:
    """Divide a batch by the values of the filters that have one for a whole batch."""
    names = scalar_filters(subject.capabilities)
    parts: dict[tuple[object, ...], list[Request]] = {}
    for request in batch:
        parts.setdefault(tuple(getattr(request.params, name) for name in names), []).append(request)
    return list(parts.values())


def stacked(subject: Sampling, batch: Sequence[Request]) -> tuple[torch.Tensor, list[SamplingParams]]:
    """Return the logits [B, V] of a batch on the device, in their dtype, and its requests."""
    rows = {id(request.row): request.row for request in batch}
    places = {key: i for i, key in enumerate(rows)}
    distinct = torch.stack([row.logits for row in rows.values()]).to(subject.device)
    which = torch.tensor([places[id(request.row)] for request in batch], device=subject.device)
    return distinct[which], [request.params for request in batch]
