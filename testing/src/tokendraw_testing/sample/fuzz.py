"""Random calls of ``sample``: the factors of the covering table, their values and more at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from tokendraw.plugin import GumbelDtype
from tokendraw_testing.crossing.comparison import CrossedRequest, make_requests
from tokendraw_testing.crossing.covering import Case, random_case
from tokendraw_testing.crossing.factors import ALL_BUT_ONE, Site, is_allowed, kinds
from tokendraw_testing.crossing.rows import FLAT, CrossedRow, crossed_row
from tokendraw_testing.crossing.table import factors
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

_MOST_LOGITS = 1 << 21
"""Logits of a call, about."""


def fuzz(subject: SampleSubject, rng: Generator, trial: Trial) -> str:
    """Make a call of several requests in a random dtype and vocabulary, and judge every row by the reference."""
    domains = factors(subject)
    domains["design"] = (*domains["design"], FLAT)
    seed_torch(rng)
    site = _site(subject, rng)
    rows = [_row(subject, {**domains, "site": [site]}, rng) for _ in range(int(rng.integers(1, 6)))]
    row_kinds = kinds(subject.capabilities)
    most = max(len(rows), min(subject.effort.crossed_batch, _MOST_LOGITS // site.size))
    batch = [
        request
        for row in rows
        for request in make_requests(
            row, _kinds(row_kinds, rng, max(1, int(most ** rng.random()) // len(rows))), rng
        )
    ]
    batch = [batch[i] for i in rng.permutation(len(batch))]
    dtype: GumbelDtype = _pick(subject.capabilities.gumbel_dtypes or ("fp32",), rng)
    modes = subject.capabilities.logprobs_modes
    words = f"{len(batch)} rows of {len(rows)} requests, {site}, {dtype} noise"
    if not modes or rng.random() < 0.5:
        judge_call(subject, trial, batch, dtype)
        return words
    mode = _pick(modes, rng)
    judge_logprobs(subject, trial, [_with_logprobs(request, rng) for request in batch], mode, dtype)
    return f"{words}, {mode}"


def _site(subject: SampleSubject, rng: Generator) -> Site:
    """Pick a vocabulary of any size up to the largest of the effort, small as often as wide."""
    capabilities = subject.capabilities
    most = min(max(subject.effort.crossed_sizes), capabilities.max_vocab_size or 1 << 30)
    return Site(_pick(capabilities.dtypes, rng), int(np.exp(rng.uniform(0.0, np.log(most + 1)))))


def _row(subject: SampleSubject, domains: dict[str, Any], rng: Generator) -> CrossedRow:
    """Make a row of a random case, with half of the values moved off the table."""
    case = random_case(domains, rng, is_allowed)
    for name, value in _random_values(case, subject.capabilities.max_top_k, rng).items():
        if rng.random() < 0.5 and is_allowed({**case, name: value}):
            case[name] = value
    return crossed_row(case, rng, subject.capabilities.tie_rule)


def _random_values(case: Case, max_top_k: int | None, rng: Generator) -> Case:
    size = case["site"].size
    changes: Case = {"temperature": float(np.exp(rng.uniform(np.log(1e-4), np.log(200.0))))}
    if case["top_k"] not in (0, ALL_BUT_ONE):
        changes["top_k"] = int(np.exp(rng.uniform(0.0, np.log(min(size, max_top_k or size)))))
    if case["top_p"] < 1:
        near_1 = float(1 - np.exp(rng.uniform(np.log(1e-4), np.log(0.99))))
        changes["top_p"] = near_1 if rng.random() < 0.5 else float(np.exp(rng.uniform(np.log(1e-5), 0.0)))
    if case["min_p"] > 0:
        changes["min_p"] = float(np.exp(rng.uniform(np.log(1e-5), 0.0)))
    return changes


def _kinds(row_kinds: Any, rng: Generator, count: int) -> list[Any]:
    return [_pick(row_kinds, rng) for _ in range(count)]


def _with_logprobs(request: CrossedRequest, rng: Generator) -> CrossedRequest:
    """Ask for some best tokens, or none, and now and then for all tokens of a small vocabulary."""
    if rng.random() < 0.2:
        return request
    num_best = int(np.exp(rng.uniform(0.0, 6.0))) - 1
    return request.with_logprobs(-1 if rng.random() < 0.1 and request.row.site.size < 1 << 14 else num_best)


def _pick(values: Any, rng: Generator) -> Any:
    return values[int(rng.integers(len(values)))]
