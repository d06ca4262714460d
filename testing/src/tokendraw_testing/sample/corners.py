"""Special code paths of kernels: last ids, far ids with NaN and infinities, near ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing.crossing.comparison import make_requests, requests_in_turn
from tokendraw_testing.crossing.factors import Site, kinds, sites
from tokendraw_testing.crossing.near_ties import make_near_tie
from tokendraw_testing.crossing.rows import NEGLIGIBLE, CrossedRow, row_of
from tokendraw_testing.crossing.table import share_among_dtypes
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.requests import combinations, has_counter
from tokendraw_testing.rows.special_rows import distant_special_rows, special_rows
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

properties = Properties("sample")
Array = NDArray[Any]

_LOGPROBS_SIZE: Final = 2000
"""Largest vocabulary in which poisoned rows show logprobs."""
_HUGE_DESIGN: Final = "huge logits"
_SINGLE_TOKEN_TOP_K: Final = 50
"""Top-k of a row with a single possible token."""
_SPECIAL_SIZE: Final = 64
_NEAR_TIE_SIZE: Final = 16
"""Smallest vocabularies of poisoned rows, and of near ties."""
_NEAR_TIES: Final = 8
"""Near ties in each dtype and vocabulary."""


@properties.required("last ids")
def last_ids(subject: SampleSubject, trial: Trial) -> str:
    """The last ids are drawn, in every dtype, for vocabularies of every remainder by 4, 8, 16 and 1024."""
    row_kinds = kinds(subject.capabilities)
    limit = subject.capabilities.max_vocab_size
    sizes = [size for size in subject.effort.remainders if size <= (limit or size)]
    rng = trial.generator("rows")
    seed_torch(rng)
    dtypes = subject.capabilities.dtypes
    for number, size in enumerate(sizes):
        for turn, dtype in enumerate(dtypes):
            is_left_out = subject.effort.interpreted and (number + turn) % len(dtypes) == 2
            if is_left_out or subject.effort.skips(size, number + turn):
                continue
            rows = list(_rows_of_last_ids(subject, Site(dtype, size), rng))
            batch = [request for row in rows for request in make_requests(row, row_kinds, rng)]
            judge_call(subject, trial, batch)
            for request in [] if subject.effort.mixed else make_requests(rows[0], row_kinds, rng):
                judge_call(subject, trial, [request])
    return f"{len(sizes)} vocabularies from {min(sizes)} to {max(sizes)} in {len(dtypes)} dtypes"


def _rows_of_last_ids(subject: SampleSubject, site: Site, rng: Generator) -> Iterator[CrossedRow]:
    size = site.size
    last_ids = np.arange(size) >= size - (size % 1024 or 1024) % 16 - 1
    distant_ids = np.isin(np.arange(size), [size // 4, size - 1 - size // 4, size - 1])
    levels = {
        "the last id alone": np.arange(size) == size - 1,
        "the last ids": last_ids,
        "ties of both halves": distant_ids,
        "all alike": np.ones(size, bool),
    }
    drawing_requests = [p for p in combinations(subject.capabilities, size) if p.temperature > 0]
    for name, has_mass in levels.items():
        params = drawing_requests[int(rng.integers(len(drawing_requests)))]
        yield row_of(subject.capabilities, site, name, np.where(has_mass, 1.0, NEGLIGIBLE), params)


@properties.required("far NaN and infinities")
def far_special_values(subject: SampleSubject, trial: Trial) -> str:
    """NaN, +inf and -inf anywhere in a row, and rows beside them, in every dtype and vocabulary, with the flag."""
    row_kinds = kinds(subject.capabilities)
    num_rows, names = 0, set[str]()
    poison_sites = [
        site for site in sites(subject.capabilities, subject.effort) if site.size >= _SPECIAL_SIZE
    ]
    if not poison_sites:
        trial.skip(_narrow_reason(subject, _SPECIAL_SIZE))
    for site in poison_sites:
        rng = trial.generator(str(site))
        seed_torch(rng)
        rows = share_among_dtypes(subject, site, make_special_rows(subject, site, rng))
        names |= {row.design for row in rows}
        copies = subject.effort.copies(4, site.size)
        batch = requests_in_turn(rows + _huge_rows(subject, site), row_kinds, copies, rng)
        batch += [
            request
            for row in rows
            if "+inf" in row.design and "seeded" in row_kinds
            for request in make_requests(row, ["seeded"], rng)
        ]
        for _ in range(min(2, copies)):  # in another order, so that what is left of a call meets other rows
            judge_call(subject, trial, [batch[i] for i in rng.permutation(len(batch))])
            num_rows += len(batch)
        is_shown = site.size <= _LOGPROBS_SIZE and subject.effort.fewer == 1
        for mode in subject.capabilities.logprobs_modes if is_shown else ():
            logprob_requests = [
                request.with_logprobs(3)
                for request in batch[: len(rows) * copies : copies]
                if request.row.design != _HUGE_DESIGN
            ]
            judge_logprobs(subject, trial, logprob_requests, mode, subject.gumbel_dtype)
    return f"{num_rows} rows of {len(names)} kinds in {len(poison_sites)} dtypes and vocabularies"


def make_special_rows(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row of every kind of special values, and clean rows, for a vocabulary of at least 64."""
    poison_by_name = {**special_rows(rng, site.size), **distant_special_rows(rng, site.size)}
    clean_rows = [("a clean row", gaussian(rng, site.size)) for _ in range(3)]
    rows = [(name, poison.logits) for name, poison in poison_by_name.items()] + clean_rows
    drawing_requests = [p for p in combinations(subject.capabilities, site.size) if p.temperature > 0]
    params_by_name = {name: drawing_requests[int(rng.integers(len(drawing_requests)))] for name, _ in rows}
    if subject.has("top_k"):  # of tokens that a grammar leaves too few
        k = min(_SINGLE_TOKEN_TOP_K, subject.capabilities.max_top_k or _SINGLE_TOKEN_TOP_K)
        params_by_name["one finite logit"] = SamplingParams(top_k=k, filter_order=subject.filter_order)
    dtype, capabilities = site.torch_dtype, subject.capabilities
    return [
        row_of(capabilities, site, name, torch.from_numpy(logits).to(dtype), params_by_name[name])
        for name, logits in rows
    ]


def _huge_rows(subject: SampleSubject, site: Site) -> list[CrossedRow]:
    """Make rows with logits so large that the quotient by the temperature, or the difference, overflows the dtype."""
    limit = torch.finfo(site.torch_dtype).max
    logits = torch.full((site.size,), -limit, dtype=torch.float64)
    logits[3], logits[site.size // 2], logits[-1] = 0.8 * limit, 0.9 * limit, 0.7 * limit
    logits, requests = logits.to(site.torch_dtype), [SamplingParams(temperature=t) for t in (0.5, 0.003)]
    return [row_of(subject.capabilities, site, _HUGE_DESIGN, logits, params) for params in requests]


@properties.advertised("near ties", has_counter)
def near_ties(subject: SampleSubject, trial: Trial) -> str:
    """Seeded rows draw the winner of scores that lie 0.0002 apart: nothing on the way to them is rounded."""
    filters = {name for name, _ in subject.capabilities.filters}
    num_rows = 0
    for site in sites(subject.capabilities, subject.effort):
        if site.size < _NEAR_TIE_SIZE:
            continue
        rng = trial.generator(str(site))
        limit = subject.capabilities.max_top_k
        params_list = [SamplingParams(temperature=t) for t in (0.7, 1.7, 0.003, 12.0, 1.0)]
        params_list += [SamplingParams(temperature=0.9, min_p=1e-7)] * ("min_p" in filters)
        if "top_k" in filters and (limit or site.size) >= site.size - 1:
            params_list.append(SamplingParams(temperature=1.3, top_k=site.size - 1))
        params_list = [replace(params, filter_order=subject.filter_order) for params in params_list]
        num_ties = subject.effort.rows(_NEAR_TIES, least=1)
        params_by_row = [params_list[i % len(params_list)] for i in range(num_ties)]
        for dtype in subject.capabilities.gumbel_dtypes:
            candidates = [make_near_tie(site, params, rng, dtype) for params in params_by_row]
            batch = [request for request in candidates if request is not None]
            if batch:
                judge_call(subject, trial, batch, dtype)
            num_rows += len(batch)
    if not num_rows:
        trial.skip(_narrow_reason(subject, _NEAR_TIE_SIZE))
    return f"{num_rows} seeded rows"


def _narrow_reason(subject: SampleSubject, least: int) -> str:
    return f"needs a vocabulary of {least}, found a limit of {subject.capabilities.max_vocab_size}"
