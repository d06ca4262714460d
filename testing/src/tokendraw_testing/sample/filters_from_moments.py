"""Filters from moments: the kept sets and the tokens of the filters that tokendraw ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import Filter
from tokendraw_testing.crossing.comparison import CrossedRequest, make_requests
from tokendraw_testing.crossing.factors import Site, kinds, some_sites
from tokendraw_testing.crossing.rows import CrossedRow, row_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.requests import shipped_filters
from tokendraw_testing.rows.subjects import SampleSubject, crossed_orders, row_refusal
from tokendraw_testing.sample.crossed_calls import judge_logprobs, judge_thresholds

properties = Properties("sample")

Array = NDArray[Any]
_TEMPERATURES = (1.0, 0.7, 2.5, 0.003, 1e-6, 150.0, 1e6)
_LEVELS = 9
"""Distinct logits of a row of few levels, in which a neighbour of the floor has a good share of the mass."""
_REFUSAL = row_refusal(SamplingParams(filters={"top_n_sigma": 1.0}))


@properties.advertised("filters from moments", lambda c: bool(shipped_filters(c)), _REFUSAL, is_long=True)
def filters_from_moments(subject: SampleSubject, trial: Trial) -> str:
    """Rows keep and draw what the floors of their moments say, beside min-p, top-p and top-k."""
    return judge_filters(subject, trial)


def judge_filters(subject: SampleSubject, trial: Trial, own: Sequence[Mapping[str, float]] = ()) -> str:
    """Judge rows of filters.

    :param own: filters with values to look at; (): the shipped ones.
    """
    row_kinds = kinds(subject.capabilities)

    def make_batch(site: Site, number: int, rng: Generator) -> list[CrossedRequest]:
        return [
            request
            for i, row in enumerate(_rows(subject, site, rng, own))
            for request in make_requests(row, [row_kinds[(i + number) % len(row_kinds)]], rng)
        ]

    return judge_batches(subject, trial, make_batch)


def judge_batches(
    subject: SampleSubject,
    trial: Trial,
    make_batch: Callable[[Site, int, Generator], list[CrossedRequest]],
) -> str:
    """Judge kept sets, tokens with and without thresholds, and logprobs of a batch for each dtype and vocabulary.

    :param make_batch: makes the batch of a dtype and vocabulary, from their number and a generator.
    """
    rng, modes = trial.generator("rows"), subject.capabilities.logprobs_modes
    view = subject.with_need(threshold=True) if subject.capabilities.threshold else subject
    num_rows = num_kept = 0
    seed_torch(rng)
    for number, site in enumerate(some_sites(subject.capabilities, subject.effort)):
        if number and subject.effort.skips(site.size, number):
            continue
        batch = make_batch(site, number, rng)
        num_rows += len(batch)
        num_kept += judge_thresholds(view, trial, batch)
        if view is not subject:  # a sampler may draw another way where nobody asks for thresholds
            judge_thresholds(subject, trial, batch)
        if modes:
            step = 3 if subject.effort.interpreted else 1
            some = enumerate(batch[number % step :: step])
            shown = [request.with_logprobs((0, 3, None)[i % 3]) for i, request in some]
            judge_logprobs(subject, trial, shown, modes[number % len(modes)], subject.gumbel_dtype)
    return f"{num_rows} rows, the kept set of {num_kept} of them named by the reference"


def _rows(
    subject: SampleSubject, site: Site, rng: Generator, own: Sequence[Mapping[str, float]]
) -> list[CrossedRow]:
    """Make a row of each design for each filter, with other filters in turn."""
    rows: list[CrossedRow] = []
    shipped = [{name: None} for name in shipped_filters(subject.capabilities)]
    for asked in own or shipped:
        for design, y in designs(rng, site.size).items():
            params = _request(subject, asked, len(rows), rng)
            top = (0.0, -3.0, 20.0)[len(rows) % 3]
            with np.errstate(over="ignore"):
                logits = torch.from_numpy(y * params.temperature + top).to(site.torch_dtype)
            rows.append(row_of(subject.capabilities, site, design, logits, params))
    return rows


def designs(rng: Generator, size: int) -> dict[str, Array]:
    """Make distances y [V] from the largest logit, by name."""
    levels = np.append(0.0, -np.sort(rng.uniform(0.2, 6.0, _LEVELS - 1)))
    few = np.full(size, -np.inf)
    count = min(size, _LEVELS)
    few[rng.permutation(size)[:count]] = levels[:count]
    one = np.full(size, -np.inf)
    one[int(rng.integers(size))] = 0.0
    masked = -rng.exponential(2.0, size)
    masked[rng.random(size) < 0.5] = -np.inf
    masked[int(rng.integers(size))] = 0.0
    return {
        "nine logits above -inf": few,
        "one logit above -inf": one,
        "half of them -inf": masked,
        "ties": rng.choice(levels, size),
        "flat": np.zeros(size),
        "bell": (bell := rng.normal(0.0, 2.0, size)) - bell.max(),
    }


def _request(
    subject: SampleSubject, asked: Mapping[str, float | None], number: int, rng: Generator
) -> SamplingParams:
    """Make a request with a filter, mostly beside another one; None: of a random value."""
    values = {
        "top_n_sigma": float(rng.uniform(0.3, 2.0)),
        "epsilon_cutoff": float(np.exp(rng.uniform(np.log(1e-4), np.log(0.2)))),
        "eta_cutoff": float(np.exp(rng.uniform(np.log(1e-3), np.log(0.6)))),
        "p_less": 1.0,
    }
    filters = {name: values[name] if value is None else value for name, value in asked.items()}
    others: dict[str, Any] = {}
    companions: list[tuple[Filter, float]] = [
        ("top_p", 0.8),
        ("top_k", min(4, subject.capabilities.max_top_k or 4)),
        ("min_p", 0.02),
    ]
    companions = [(other, value) for other, value in companions if subject.has(other)]
    if number % 4 == 0:
        for second in shipped_filters(subject.capabilities)[:1]:
            filters[second] = values[second]
    elif number % 4 != 2 and companions:
        other, value = companions[int(rng.integers(len(companions)))]
        others[other] = value
    orders = crossed_orders(subject.capabilities)
    return SamplingParams(
        temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
        filters=filters,
        filter_order=orders[number // 2 % len(orders)],
        **others,
    )
