"""Scores of rows with typical-p, with XTC and with the temperature last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.plugin import LogprobsMode
from tokendraw_testing import reference
from tokendraw_testing.crossing.comparison import CrossedRequest, require_thresholds, stack_logits
from tokendraw_testing.crossing.factors import Site, sites
from tokendraw_testing.crossing.rows import row_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.requests import interval_choices
from tokendraw_testing.sample.filters_from_moments import designs
from tokendraw_testing.score.lines import judge_scores
from tokendraw_testing.score.subject import ScoreSubject

properties = Properties("score")

_TEMPERATURES: Final = (1.0, 0.7, 2.5, 0.05)
_LARGEST_SIZE: Final = 1 << 14


@properties.advertised("score ceilings", lambda c: bool(interval_choices(c)), is_long=True)
def ceilings(subject: ScoreSubject, trial: Trial) -> str:
    """Rows cut from above, or filtered at temperature 1, have the reference's values, masses, entropies and bounds.

    The uniform of a row's seed and position decides XTC; rows without a seed keep their likeliest tokens.
    """
    rng, modes, num_rows = trial.generator("rows"), subject.capabilities.logprobs_modes, 0
    for number, site in enumerate(sites(subject.capabilities, subject.effort)):
        if site.size > _LARGEST_SIZE or (number and subject.effort.skips(site.size, number)):
            continue
        for turn in range(1 if subject.effort.fewer > 1 else len(modes)):
            batch = list(_requests(subject, site, rng))
            _judge(subject, trial, batch, modes[(number + turn) % len(modes)], rng)
            num_rows += len(batch)
    return f"{num_rows} rows"


def _judge(
    subject: ScoreSubject, trial: Trial, batch: list[CrossedRequest], mode: LogprobsMode, rng: Generator
) -> None:
    """Score the likeliest token, a kept one or any of each row, and judge its scores and the row's bounds."""
    tokens = [
        (int(row.x.argmax()), int(row.prepared.kept.argmax()), int(rng.integers(row.site.size)))[i % 3]
        for i, row in enumerate(request.row for request in batch)
    ]
    judge_scores(subject, trial, batch, tokens, mode)
    if not subject.capabilities.threshold:
        return
    scored = subject.with_need(threshold=True).score(
        stack_logits(batch, subject.device), tokens, [request.params for request in batch]
    )
    assert scored.threshold is not None
    asking = [
        each
        if each.params.seed is not None
        else replace(each, params=replace(each.params, xtc_probability=0.0))
        for each in batch
    ]
    ceilings = [None] * len(batch) if scored.ceiling is None else scored.ceiling.tolist()
    require_thresholds(trial, asking, scored.threshold.tolist(), ceilings)


def _requests(subject: ScoreSubject, site: Site, rng: Generator) -> Iterator[CrossedRequest]:
    """Make requests with each of the choices, some without a seed, and some greedy; their positions count from 0."""
    all_designs, position = list(designs(rng, site.size).items()), 0
    for number, choice in enumerate(interval_choices(subject.capabilities)):
        for design, y in all_designs[number % 2 :: 2]:
            seed = int(rng.integers(2**63)) if rng.random() < 0.7 else None
            temperature = float(rng.choice(_TEMPERATURES))
            params = SamplingParams(temperature=temperature, seed=seed, **choice)
            is_applied = seed is not None and params.xtc_probability > 0
            if is_applied:
                is_applied = reference.applies_xtc(params, seed or 0, position, subject.gumbel_dtype)
            scale = 1.0 if params.filter_order == "temperature_last" else temperature
            logits = torch.from_numpy(y * scale + (0.0, -3.0, 20.0)[position % 3]).to(site.torch_dtype)
            decided = replace(params, seed=None, xtc_probability=float(is_applied))
            row = row_of(subject.capabilities, site, design, logits, decided)
            if subject.capabilities.greedy and rng.random() < 0.15:
                params = replace(params, temperature=0.0)
            yield CrossedRequest(row, params, position)
            position += 1
