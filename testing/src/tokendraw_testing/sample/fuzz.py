"""Random calls of ``sample``: the factors of the covering table, their values and more at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokendraw.plugin import GumbelDtype
from tokendraw_testing.crossing.comparison import Request, requested
from tokendraw_testing.crossing.covering import Case, random_case
from tokendraw_testing.crossing.factors import ALL_BUT_ONE, Site, allowed, kinds
from tokendraw_testing.crossing.rows import CrossedRow, crossed_row
from tokendraw_testing.crossing.table import factors
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.sampling import Sampling
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

_MOST_LOGITS = 1 << 21
"""Logits of a call, about."""


def fuzz(subject: Sampling, rng: np.random.Generator, trial: Trial) -> str:
    """Make one call of several requests in one dtype and vocabulary, and judge every row by the reference."""
    every = factors(subject)
    seed_torch(rng)
    site = _site(subject, rng)
    rows = [_row(subject, {**every, "site": [site]}, rng) for _ in range(int(rng.integers(1, 6)))]
    offered = kinds(subject.capabilities)
    most = max(len(rows), min(subject.effort.crossed_batch, _MOST_LOGITS // site.size))
    batch = [
        request
        for row in rows
        for request in requested(
            row, _kinds(offered, rng, max(1, int(most ** rng.random()) // len(rows))), rng
        )
    ]
    batch = [batch[i] for i in rng.permutation(len(batch))]
    dtype: GumbelDtype = _one(subject.capabilities.gumbel_dtypes or ("fp32",), rng)
    modes = subject.capabilities.logprobs_modes
    words = f"{len(batch)} rows of {len(rows)} requests, {site}, {dtype} noise"
    if not modes or rng.random() < 0.5:
        judge_call(subject, trial, batch, dtype)
        return words
    mode = _one(modes, rng)
    judge_logprobs(subject, trial, [_showing(request, rng) for request in batch], mode, dtype)
    return f"{words}, {mode}"


def _site(subject: Sampling, rng: np.random.Generator) -> Site:
    """Pick a vocabulary of any size up to the largest of the effort, small ones as often as wide ones."""
    offered = subject.capabilities
    most = min(max(subject.effort.crossed_sizes), offered.max_vocab_size or 1 << 30)
    return Site(_one(offered.dtypes, rng), int(np.exp(rng.uniform(0.0, np.log(most + 1)))))


def _row(subject: Sampling, every: dict[str, Any], rng: np.random.Generator) -> CrossedRow:
    """Make a row of a random case, half of its values moved off the table."""
    case = random_case(every, rng, allowed)
    for name, value in _moved(case, subject.capabilities.max_top_k, rng).items():
        if rng.random() < 0.5 and allowed({**case, name: value}):
            case[name] = value
    return crossed_row(case, rng, subject.capabilities.tie_rule)


def _moved(case: Case, max_top_k: int | None, rng: np.random.Generator) -> Case:
    size = case["site"].size
    moved: Case = {"temperature": float(np.exp(rng.uniform(np.log(1e-4), np.log(200.0))))}
    if case["top_k"] not in (0, ALL_BUT_ONE):
        moved["top_k"] = int(np.exp(rng.uniform(0.0, np.log(min(size, max_top_k or size)))))
    if case["top_p"] < 1:
        moved["top_p"] = float(1 - np.exp(rng.uniform(np.log(1e-4), np.log(0.99))))
    if case["min_p"] > 0:
        moved["min_p"] = float(np.exp(rng.uniform(np.log(1e-5), 0.0)))
    return moved


def _kinds(offered: Any, rng: np.random.Generator, count: int) -> list[Any]:
    return [_one(offered, rng) for _ in range(count)]


def _showing(request: Request, rng: np.random.Generator) -> Request:
    """Ask for some best tokens, or none, and for all of them now and then where they are few."""
    if rng.random() < 0.2:
        return request
    wanted = int(np.exp(rng.uniform(0.0, 6.0))) - 1
    return request.showing(-1 if rng.random() < 0.1 and request.row.site.size < 1 << 14 else wanted)


def _one(values: Any, rng: np.random.Generator) -> Any:
    return values[int(rng.integers(len(values)))]
