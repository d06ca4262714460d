"""Unseeded rows in every dtype and at wide vocabularies: their distribution, and noise shared between rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.philox import TILE_SIZE
from tokendraw_testing.crossing.comparison import CrossedRequest
from tokendraw_testing.crossing.covering import covering, random_case
from tokendraw_testing.crossing.factors import Site, is_allowed, sites, some_sites
from tokendraw_testing.crossing.rows import LARGEST_Y_SHIFT, TOPS, CrossedRow, crossed_row, row_of
from tokendraw_testing.crossing.table import factors, threshold_rows
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import pool_tokens, worst_distance
from tokendraw_testing.kit.trial import Experiment, Trial, Verdict
from tokendraw_testing.rows.draws import fit_experiment, random_seeds, seed_torch
from tokendraw_testing.rows.requests import has_counter, scalar_filters, tokens_of
from tokendraw_testing.rows.subjects import SampleSubject, crossed_orders

properties = Properties("sample")
Array = NDArray[Any]

_PLAIN_SIZE: Final = 33
_PLAIN_DRAWS: Final = 12_000
"""Enough to see the y of each token rounded to a quarter."""
_ORDER_PROBABILITIES: Final = (0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03)
_ORDER_TOP_K: Final = 4
_ORDER_DRAWS: Final = 3000  # enough for a bin of the least likely token that either order keeps
_LEVEL_DESIGNS: Final = ("stairs", "last ids", "deep bulk", "ties at k", "plateau at p", "edges of min-p")
"""Designs of a few heavy levels, of which a few dozen draws say whether each is drawn, and all of it."""
_SMALL_TOP_KS: Final = (1, 40, 100)
_NARROW_SIZE: Final = 1 << 14
"""Largest vocabulary in which crowds have every filter, shared slots and logprobs."""


@properties.required("crossed distributions")
def crossed_distributions(subject: SampleSubject, trial: Trial) -> str:
    """Unseeded rows draw every level of designed rows as often as they should, in each half of its ids."""
    rows = _design_rows(subject, trial)
    effort = subject.effort
    for site, site_rows in rows.items():
        for i, row in enumerate(site_rows):
            _judge_row(subject, trial, f"{i}: ", row, effort.crossed_draws(site.size))
    for row in _plain_rows(subject, trial):
        _judge_row(subject, trial, "", row, effort.draws_of(_PLAIN_DRAWS), by_token=True)
    for row in _order_rows(subject):
        prefix = f"{row.params.filter_order}: "
        _judge_row(subject, trial, prefix, row, effort.draws_of(_ORDER_DRAWS), by_token=True)
    for i, row in enumerate(_min_p_rows(subject, trial)):
        _judge_row(subject, trial, f"value {i}: ", row, 2 * effort.crossed_draws(row.site.size))
    return f"{sum(map(len, rows.values()))} designed rows over {len(rows)} dtypes and vocabularies"


def _judge_row(
    subject: SampleSubject, trial: Trial, prefix: str, row: CrossedRow, draws: int, *, by_token: bool = False
) -> None:
    """Judge the draws of every level of a row, or of each token."""
    bins = None if by_token else functools.partial(_bins, row)
    experiment = fit_experiment(subject, row.logits, row.params, row.expected.probabilities, bins)
    trial.judge(f"{prefix}{CrossedRequest(row, row.params, 0)}", experiment, draws)


def _plain_rows(subject: SampleSubject, trial: Trial) -> list[CrossedRow]:
    """Make rows of a few likely tokens without any filter in every dtype: plain, cold, hot, and of two equal tokens."""
    rng, limit = trial.generator("plain rows"), subject.capabilities.max_vocab_size or _PLAIN_SIZE
    distances = 2 * rng.random(min(_PLAIN_SIZE, limit))
    rows = [(1.0, distances), (0.02, distances), (12.0, distances), (1.0, np.zeros(min(2, limit)))]
    return [
        row_of(
            subject.capabilities,
            Site(dtype, len(below)),
            "likely tokens",
            temperature * (LARGEST_Y_SHIFT - below),
            SamplingParams(temperature=temperature),
        )
        for dtype in subject.capabilities.dtypes
        for temperature, below in rows[: 1 if subject.effort.mixed else None]
    ]


def _order_rows(subject: SampleSubject) -> list[CrossedRow]:
    """Make the same row in each filter order: top-p keeps another number of tokens in the other order."""
    size = len(_ORDER_PROBABILITIES)
    has_filters = subject.has("top_k") and subject.has("top_p")
    limits = subject.capabilities.max_top_k or size, subject.capabilities.max_vocab_size or size
    if not has_filters or limits[0] < _ORDER_TOP_K or limits[1] < size:
        return []
    site, logits = Site(subject.capabilities.dtypes[0], size), np.log(_ORDER_PROBABILITIES)
    return [
        row_of(
            subject.capabilities,
            site,
            "known",
            logits,
            SamplingParams(top_k=_ORDER_TOP_K, top_p=0.82, filter_order=order),
        )
        for order in crossed_orders(subject.capabilities)
    ]


def _min_p_rows(subject: SampleSubject, trial: Trial) -> list[CrossedRow]:
    """Make a row for each value of min-p, in a vocabulary of a tile or little more."""
    if subject.effort.mixed:
        return []
    rng, all_sites = trial.generator("values"), sites(subject.capabilities, subject.effort)
    size = min((site.size for site in all_sites if site.size >= TILE_SIZE), default=0)
    tile_sites = [site for site in all_sites if site.size == size]
    rows = [row for site in tile_sites for row in threshold_rows(subject.capabilities, site, rng)]
    return [row for row in rows if row.expected.certain and row.params.min_p > 0]


def _design_rows(subject: SampleSubject, trial: Trial) -> dict[Site, list[CrossedRow]]:
    """Make rows of every design in every dtype and vocabulary, their filters and temperatures by a covering table."""
    rng = trial.generator("table")
    all_values = factors(subject)
    designs = [design for design in all_values["design"] if design.name in _LEVEL_DESIGNS]
    domains = {**all_values, "design": designs, "top": TOPS[:1]}
    rows_by_site: dict[Site, list[CrossedRow]] = {}
    seen_designs = set()
    cases = covering(domains, rng, lambda case: is_allowed(case) and _is_visible(case))
    for case in subject.effort.some(cases, 6):
        key = case["site"], case["design"].name
        row = crossed_row(case, rng, subject.capabilities.tie_rule)
        if key not in seen_designs and row.expected.certain:
            seen_designs.add(key)
            rows_by_site.setdefault(case["site"], []).append(row)
    ties = {"temperature": [1.0], "top_p": [1.0], "min_p": [0.0]}  # at a small k, in any table
    ties["top_k"] = [k for k in domains["top_k"] if k in _SMALL_TOP_KS]
    ties["design"] = [design for design in designs if design.needs == "top_k"]
    for site in domains["site"] if subject.has("top_k") else ():
        if 4 * TILE_SIZE < site.size <= _NARROW_SIZE:
            case = random_case({**domains, **ties, "site": [site]}, rng, is_allowed)
            row = crossed_row(case, rng, subject.capabilities.tie_rule)
            rows_by_site.setdefault(site, []).append(row)
    return rows_by_site


def _is_visible(case: Any) -> bool:
    """Allow designed filters alone, and a top-p with a visible effect."""
    design = case.get("design")
    if design is not None and design.needs is None:
        filters = ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)
        return all(case.get(name, default) == default for name, default in filters)
    return bool(case.get("top_p", 1.0) in (1.0, 0.3, 0.9))


def _bins(row: CrossedRow, draws: int) -> Array:
    """Put every token into a bin by its level, half a unit of y wide, and by the half of the level's ids."""
    expected = row.expected
    tokens = np.flatnonzero(expected.probabilities > 0)
    level = np.floor(2 * np.log(expected.probabilities[tokens] / expected.probabilities.max()) - 1e-6)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=np.nan) != 0)
    sizes = np.diff(starts, append=len(order))
    is_second_half = np.arange(len(order)) - np.repeat(starts, sizes) >= np.repeat(sizes, sizes) // 2
    cell = np.empty(len(order), np.int64)
    cell[order] = 2 * np.repeat(np.arange(len(starts)), sizes) + is_second_half
    masses = np.bincount(cell, expected.probabilities[tokens])
    in_part = np.bincount(cell, expected.in_part[tokens]) > 0
    bins = np.full(len(expected.probabilities), -1)
    bins[tokens] = pool_tokens(masses, draws, in_part)[cell]
    return bins


_SMALL_BATCH_ROWS: Final = 200
"""Rows of a small call."""


@dataclass(frozen=True)
class _Crowd:
    """A batch of equal rows over equal tokens; two rows hardly ever draw the same token."""

    site: Site
    rows: int


@properties.required("noise of distant rows")
def distant_rows(subject: SampleSubject, trial: Trial) -> str:
    """No two rows of a batch or of successive batches share noise, at any distance, in any dtype and vocabulary."""
    all_sites = some_sites(subject.capabilities, subject.effort)
    crowds = [_Crowd(site, subject.effort.crowd_of(site.size)) for site in all_sites]
    crowds = [crowd for crowd in crowds if crowd.site.size > 4 * crowd.rows]
    if not crowds:
        limit = subject.capabilities.max_vocab_size
        trial.skip(f"needs a vocabulary in which few rows draw the same token, found a limit of {limit}")
    for turn, crowd in enumerate(crowds):
        experiment = _crowd_experiment(subject, crowd, turn)
        trial.judge(f"{crowd.rows} rows of {crowd.site}", experiment, 1)
    return ", ".join(f"{crowd.rows} rows of {crowd.site}" for crowd in crowds)


def _crowd_experiment(subject: SampleSubject, crowd: _Crowd, turn: int) -> Experiment:
    """Make the experiment that draws a crowd under filters that keep all, beside seeds, by slots and with logprobs."""
    rows, size = crowd.rows, crowd.site.size
    batch = torch.zeros(1, size, dtype=crowd.site.torch_dtype, device=subject.device).expand(rows, -1)
    is_narrow = size <= _NARROW_SIZE and rows > _SMALL_BATCH_ROWS
    requests = _unfiltered_requests(subject, crowd.site)[: None if is_narrow else 2]
    mixed_requests = [requests[i // 2 % len(requests)] for i in range(rows)]
    modes = subject.capabilities.logprobs_modes

    def experiment(rng: Generator, calls: int) -> Verdict:
        seed_torch(rng)
        seeds, positions = random_seeds(rng, rows)
        partly_seeded = [
            replace(requests[0], seed=seed if i % 7 == 3 and has_counter(subject.capabilities) else None)
            for i, seed in enumerate(seeds)
        ]
        few, parts = batch[:_SMALL_BATCH_ROWS], []
        for _ in range(calls):
            parts += [
                tokens_of(subject, batch, params, positions) for params in (mixed_requests, partly_seeded)
            ]
            if is_narrow and not scalar_filters(subject.capabilities):
                slots = torch.arange(len(few)) % len(requests)
                parts.append(subject.tokens(few, requests, row_index=slots))
            if is_narrow and modes:
                shown = [replace(params, logprobs=1) for params in mixed_requests[: len(few)]]
                parts.append(tokens_of(subject, few, shown, mode=modes[turn % len(modes)]))
        tokens = np.concatenate(parts)
        verdicts = [coincidences(tokens, size)]
        if size > 4 * TILE_SIZE:
            shares = np.bincount(np.arange(size) // TILE_SIZE) / size
            verdicts.append(coincidences(tokens // TILE_SIZE, 1 / (shares**2).sum(), "tiles"))
        worst = min(verdicts, key=lambda verdict: verdict.p_value)
        return replace(worst, p_value=min(1.0, worst.p_value * len(verdicts)))

    return experiment


def _unfiltered_requests(subject: SampleSubject, site: Site) -> list[SamplingParams]:
    """Make a request of each filter that keeps all, or all but a few, of equal tokens."""
    requests = [SamplingParams()]
    if subject.has("min_p"):
        requests.append(SamplingParams(min_p=0.5))
    if subject.has("top_k") and subject.capabilities.max_top_k is None:
        requests.append(SamplingParams(top_k=site.size - 1))
    if subject.has("top_p"):
        requests.append(SamplingParams(top_p=0.999))
    return [replace(params, filter_order=subject.filter_order) for params in requests]


def coincidences(tokens: Array, size: float, what: str = "tokens") -> Verdict:
    """Test rows over ``size`` equal tokens for noise shared by two rows, at every distance.

    Equal tokens make the numbers of equal pairs exactly binomial: see :func:`worst_distance`.
    """
    p_value, distance, count = worst_distance(tokens, 1 / size)
    expected = (len(tokens) - distance) / size
    return Verdict(
        p_value,
        f"rows {distance} apart draw the same of {round(size)} {what} {count} times, expected {expected:.2f}",
        len(tokens),
    )
