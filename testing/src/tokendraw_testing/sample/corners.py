"""Places that kernels handle by code of their own: last ids, far ids with NaN and infinities, near ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing.crossing.comparison import requested
from tokendraw_testing.crossing.contested import contested
from tokendraw_testing.crossing.factors import Site, kinds, sites
from tokendraw_testing.crossing.rows import NEGLIGIBLE, CrossedRow, in_dtype
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.poison import far_poisons, poisons
from tokendraw_testing.rows.requests import combinations, has_counter
from tokendraw_testing.rows.sampling import Sampling
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

properties = Properties("sample")
Array = NDArray[Any]

_FEW_TILES: Final = 2000
"""Largest vocabulary in which poisoned rows show logprobs."""
_HUGE: Final = "huge logits"
_K_OF_ONE: Final = 50
"""Top-k of a row of which one token alone can be drawn."""
_LEAST_POISONED: Final = 64
_LEAST_CONTESTED: Final = 16
"""Smallest vocabularies of poisoned rows, and of near ties."""
_TIES: Final = 8
"""Near ties in each dtype and vocabulary."""


@properties.required("last ids")
def last_ids(subject: Sampling, trial: Trial) -> str:
    """The last ids are drawn, in every dtype, for vocabularies of every remainder by 4, 8, 16 and 1024."""
    offered = kinds(subject.capabilities)
    sizes = [
        size for size in subject.effort.remainders if size <= (subject.capabilities.max_vocab_size or size)
    ]
    rng = trial.generator("rows")
    seed_torch(rng)
    for number, size in enumerate(sizes):
        for turn, dtype in enumerate(subject.capabilities.dtypes):
            if subject.effort.skips(size, number + turn):
                continue
            rows = list(_with_last_ids(subject, Site(dtype, size), rng))
            batch = [request for row in rows for request in requested(row, offered, rng)]
            judge_call(subject, trial, batch)
            for request in [] if subject.effort.mixed else requested(rows[0], offered, rng):
                judge_call(subject, trial, [request])
    return f"{len(sizes)} vocabularies from {min(sizes)} to {max(sizes)} in {len(subject.capabilities.dtypes)} dtypes"


def _with_last_ids(subject: Sampling, site: Site, rng: np.random.Generator) -> Iterator[CrossedRow]:
    size = site.size
    last = np.arange(size) >= size - (size % 1024 or 1024) % 16 - 1
    far = np.isin(np.arange(size), [size // 4, size - 1 - size // 4, size - 1])
    levels = {
        "the last id alone": np.arange(size) == size - 1,
        "the last ids": last,
        "ties of both halves": far,
        "all alike": np.ones(size, bool),
    }
    some = [p for p in combinations(subject.capabilities, size) if p.temperature > 0]
    for name, heavy in levels.items():
        logits = in_dtype(np.where(heavy, 1.0, NEGLIGIBLE), site.torch_dtype)
        params = some[int(rng.integers(len(some)))]
        yield CrossedRow(site, name, logits, params, subject.capabilities.tie_rule)


@properties.required("far NaN and infinities")
def far_poison(subject: Sampling, trial: Trial) -> str:
    """NaN, +inf and -inf anywhere in a row, and rows beside them, in every dtype and vocabulary, with the flag."""
    offered = kinds(subject.capabilities)
    looked, names = 0, set[str]()
    places = [site for site in sites(subject.capabilities, subject.effort) if site.size >= _LEAST_POISONED]
    if not places:
        trial.skip(_too_narrow(subject, _LEAST_POISONED))
    for site in places:
        rng = trial.generator(str(site))
        seed_torch(rng)
        rows = poisoned(subject, site, rng)
        names |= {row.design for row in rows}
        copies = subject.effort.poisoned_copies(site.size)
        batch = [
            request
            for i, row in enumerate(rows + _huge(subject, site))
            for request in requested(row, [offered[(i + j) % len(offered)] for j in range(copies)], rng)
        ]
        batch += [
            request
            for row in rows
            if "+inf" in row.design and "seeded" in offered
            for request in requested(row, ["seeded"], rng)
        ]
        for _ in range(min(2, copies)):  # in another order, so that what is left of a call meets other rows
            judge_call(subject, trial, [batch[i] for i in rng.permutation(len(batch))])
            looked += len(batch)
        is_shown = site.size <= _FEW_TILES and subject.effort.fewer == 1
        for mode in subject.capabilities.logprobs_modes if is_shown else ():
            shown = [
                request.showing(3)
                for request in batch[: len(rows) * copies : copies]
                if request.row.design != _HUGE
            ]
            judge_logprobs(subject, trial, shown, mode, subject.gumbel_dtype)
    return f"{looked} rows of {len(names)} kinds in {len(places)} dtypes and vocabularies"


def poisoned(subject: Sampling, site: Site, rng: np.random.Generator) -> list[CrossedRow]:
    """Make a row of every kind of poison, and clean ones, for a vocabulary of at least 64."""
    made = {**poisons(rng, site.size), **far_poisons(rng, site.size)}
    clean = [("a clean row", gaussian(rng, site.size)) for _ in range(3)]
    named = [(name, poison.logits) for name, poison in made.items()] + clean
    some = [p for p in combinations(subject.capabilities, site.size) if p.temperature > 0]
    asked = {name: some[int(rng.integers(len(some)))] for name, _ in named}
    if subject.has("top_k"):  # of tokens that a grammar leaves too few
        order = (*subject.capabilities.filter_orders, "top_k_first")[0]
        k = min(_K_OF_ONE, subject.capabilities.max_top_k or _K_OF_ONE)
        asked["one finite logit"] = SamplingParams(top_k=k, filter_order=order)
    return [
        CrossedRow(
            site,
            name,
            torch.from_numpy(logits).to(site.torch_dtype),
            asked[name],
            subject.capabilities.tie_rule,
        )
        for name, logits in named
    ]


def _huge(subject: Sampling, site: Site) -> list[CrossedRow]:
    """Make rows of logits whose quotient by the temperature, or whose difference, no longer fits their dtype."""
    limit = torch.finfo(site.torch_dtype).max
    logits = torch.full((site.size,), -limit, dtype=torch.float64)
    logits[3], logits[site.size // 2], logits[-1] = 0.8 * limit, 0.9 * limit, 0.7 * limit
    return [
        CrossedRow(
            site,
            _HUGE,
            logits.to(site.torch_dtype),
            SamplingParams(temperature=temperature),
            subject.capabilities.tie_rule,
        )
        for temperature in (0.5, 0.003)
    ]


@properties.advertised("near ties", has_counter)
def near_ties(subject: Sampling, trial: Trial) -> str:
    """Seeded rows draw the winner of scores that lie 0.0002 apart: nothing on the way to them is rounded."""
    filters = {name for name, _ in subject.capabilities.filters}
    looked = 0
    for site in sites(subject.capabilities, subject.effort):
        if site.size < _LEAST_CONTESTED:
            continue
        rng = trial.generator(str(site))
        limit = subject.capabilities.max_top_k
        asked = [SamplingParams(temperature=t) for t in (0.7, 1.7, 0.003, 12.0, 1.0)]
        asked += [SamplingParams(temperature=0.9, min_p=1e-7)] * ("min_p" in filters)
        if "top_k" in filters and (limit or site.size) >= site.size - 1:
            asked.append(SamplingParams(temperature=1.3, top_k=site.size - 1))
        order = (*subject.capabilities.filter_orders, "top_k_first")[0]
        asked = [replace(params, filter_order=order) for params in asked]
        wanted = [asked[i % len(asked)] for i in range(subject.effort.rows(_TIES, least=1))]
        for dtype in subject.capabilities.gumbel_dtypes:
            made = [contested(site, params, rng, dtype) for params in wanted]
            batch = [request for request in made if request is not None]
            if batch:
                judge_call(subject, trial, batch, dtype)
            looked += len(batch)
    if not looked:
        trial.skip(_too_narrow(subject, _LEAST_CONTESTED))
    return f"{looked} seeded rows"


def _too_narrow(subject: Sampling, least: int) -> str:
    return f"needs a vocabulary of {least}, found a limit of {subject.capabilities.max_vocab_size}"
