"""Batches with rows of one kind: kernels take short cuts on the host's knowledge."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw_testing.crossing.comparison import CrossedRequest, make_requests
from tokendraw_testing.crossing.factors import Kind, Site
from tokendraw_testing.crossing.rows import NEGLIGIBLE, CrossedRow, round_to_dtype, row_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.requests import combinations, has_counter
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.crossed_calls import judge_call

properties = Properties("sample")

_VOCAB_SIZE: Final = 1100
_ROWS: Final = (1, 5, 1100)


@properties.required("batches of one kind")
def one_kind(subject: SampleSubject, trial: Trial) -> str:
    """Rows that are all greedy, all cold, all plain or all of one filter draw what they should, few and many."""
    rng = trial.generator("rows")
    seed_torch(rng)
    size = min(_VOCAB_SIZE, subject.capabilities.max_vocab_size or _VOCAB_SIZE)
    requests = _single_filter_requests(subject, size)
    num_rows = 0
    for dtype in subject.capabilities.dtypes:
        site = Site(dtype, size)
        for rows in _ROWS if subject.effort.fewer == 1 else _ROWS[:1]:
            num_rows += _require_largest(subject, trial, site, rows, rng)
        for number, params in enumerate(requests[:: subject.effort.fewer]):
            for seeded in (False, True)[: 1 + has_counter(subject.capabilities)]:
                rows = (6, 3)[number % 2]
                crossed_rows = [
                    _stepped_row(subject, site, params, rng) for _ in range(subject.effort.rows(rows))
                ]
                kind: Kind = "seeded" if seeded else "unseeded"
                batch = [request for row in crossed_rows for request in make_requests(row, [kind], rng)]
                judge_call(subject, trial, batch)
                num_rows += len(batch)
        batch = _tie_requests(subject, site, rng)
        for rows in (1, len(batch)) if batch else ():
            judge_call(subject, trial, batch[:rows])
            num_rows += rows
    return f"{num_rows} rows of {len(requests)} requests in {len(subject.capabilities.dtypes)} dtypes"


def _single_filter_requests(subject: SampleSubject, size: int) -> list[SamplingParams]:
    """List the requests with at most one filter, in either order."""
    filters = ("top_k", "top_p", "min_p")
    return [
        p
        for p in combinations(subject.capabilities, size)
        if p.temperature > 0
        and sum(getattr(p, name) != getattr(SamplingParams(), name) for name in filters) < 2
    ]


def _stepped_row(subject: SampleSubject, site: Site, params: SamplingParams, rng: Generator) -> CrossedRow:
    """Make a Gaussian row in steps of a quarter, so that every filter meets ties."""
    logits = np.round(4 * gaussian(rng, site.size)) / 4
    return row_of(subject.capabilities, site, "a batch of one kind", logits, params)


def _tie_requests(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
    """Make seeded rows with top-k and top-p; the mass of the ties at k decides the nucleus.

    Most of the ties lie beyond the first k: without them two fifths of what is drawn would be dropped.
    """
    capabilities, num_above, p = subject.capabilities, min(40, site.size // 8), 0.3
    if not (subject.has("top_k") and subject.has("top_p") and has_counter(capabilities)):
        return []
    has_room = 0 < num_above < (capabilities.max_top_k or site.size)
    if not has_room or "top_k_first" not in capabilities.filter_orders:
        return []
    params = SamplingParams(top_k=num_above + 1, top_p=p)
    y = np.full(site.size, NEGLIGIBLE)
    y[:num_above] = np.linspace(0.0, -1.0, num_above)
    num_ties = site.size // 2
    mass = 0.6 * (1 - p) / p * np.exp(y[:num_above]).sum()
    y[num_above : num_above + num_ties] = min(np.log(mass / num_ties), -1.1)
    rows = [
        row_of(capabilities, site, "ties at k under p", rng.permutation(y), params)
        for _ in range(subject.effort.rows(16))
    ]
    seeds, positions = random_seeds(rng, len(rows))
    return [
        CrossedRequest(row, replace(params, seed=seed), position)
        for row, seed, position in zip(rows, seeds, positions, strict=True)
    ]


def _require_largest(subject: SampleSubject, trial: Trial, site: Site, rows: int, rng: Generator) -> int:
    """Require the largest token of each row, on a tie the lowest id of greedy rows."""
    x = np.round(rng.standard_normal((rows, site.size)))
    cold_logits = x.copy()
    cold_logits[np.arange(rows), rng.integers(0, site.size, rows)] = 9.0
    cases = [("cold", cold_logits, SamplingParams(temperature=1e-4))]
    if subject.capabilities.greedy:
        cases.append(("greedy", x, SamplingParams(temperature=0.0)))
    for name, values, params in cases:
        tokens = subject.tokens(round_to_dtype(values, site.torch_dtype), params)
        mismatches = np.flatnonzero(tokens != values.argmax(1))
        i = mismatches[0] if len(mismatches) else 0
        ties = values[i, tokens[i]] == values[i].max()
        trial.require(
            not len(mismatches),
            f"{rows} {name} rows of {site}: row {i} needs token {values[i].argmax()}, found {tokens[i]}"
            + ": both have the largest logit, and the lowest id counts" * bool(ties),
        )
    return rows * len(cases)
