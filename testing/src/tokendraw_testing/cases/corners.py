"""Rows and requests in which kernels have code of their own: ties at an edge, last ids, special values, no filter."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw.philox import TILE_SIZE
from tokendraw_testing.cases.factors import NO_FILTERS, Kind, Site
from tokendraw_testing.cases.requests import (
    CrossedRequest,
    combinations,
    has_counter,
    make_requests,
    random_seeds,
    telling_positions,
)
from tokendraw_testing.cases.rows import (
    NEGLIGIBLE,
    PLATEAU,
    WIDE_SIZE,
    CrossedRow,
    crossed_row,
    round_to_dtype,
    row_of,
    special_rows,
)
from tokendraw_testing.logits_families import FAMILIES, gaussian
from tokendraw_testing.subjects import SampleSubject

_COMBINED_SIZES: Final = (2, 31, 1025)
_LARGE_TOP_P: Final = 0.9995
_KEEPING_FILTERS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"top_p": 1 - 2e-5},
    {"min_p": 1e-8},
    {"top_k": 1500},
    {"top_k": 2**30},
    {"top_k": 1500, "min_p": 1e-8},
)
"""Requests that keep all tokens of a row with 905 heavy tokens."""


def tie_requests(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
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
    rows = [row_of(capabilities, site, "ties at k under p", rng.permutation(y), params) for _ in range(16)]
    return [request for row in rows for request in make_requests(row, ["seeded"], rng)]


def combined_requests(subject: SampleSubject, kind: Kind, rng: Generator) -> Iterator[list[CrossedRequest]]:
    """Make batches of every combination of filters, also three at once, over rows of every family and few ids."""
    capabilities = subject.capabilities
    for dtype, size in itertools.product(capabilities.dtypes, _COMBINED_SIZES):
        if size > (capabilities.max_vocab_size or size):
            continue
        site, requests = Site(dtype, size), combinations(capabilities, size)[:: subject.effort.fewer]
        batch = list[CrossedRequest]()
        for params, (name, family) in zip(requests, itertools.cycle(FAMILIES.items()), strict=False):
            logits = round_to_dtype(family(rng, size), site.torch_dtype)
            batch += make_requests(row_of(capabilities, site, name, logits, params), [kind], rng)
        yield batch


def unfiltered_requests(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
    """Make requests that keep all tokens, of a sloping row, and of a row with 0.0002 of its mass on 500 tokens.

    The latter bring seeds that draw one of the 500.
    """
    if not has_counter(subject.capabilities) or site.size < 3 * TILE_SIZE:
        return []
    filters = {name for name, _ in subject.capabilities.filters}
    if subject.capabilities.max_top_k is not None:
        filters.discard("top_k")
    kept_fields = [fields for fields in _KEEPING_FILTERS if fields.keys() <= filters]
    params_list = [SamplingParams(**fields, filter_order=subject.filter_order) for fields in kept_fields]
    case = {"site": site, "design": PLATEAU, **NO_FILTERS, "top_p": _LARGE_TOP_P}
    row = crossed_row(case, rng, subject.capabilities.tie_rule)
    y = -2 * rng.permutation(site.size) / site.size
    slope = replace(row, design="a slope", logits=round_to_dtype(y, site.torch_dtype))
    (seed, slope_seed), (first, _) = random_seeds(rng, 2)
    slope_params = [params for params in params_list if params.top_k in (0, 2**30)]
    positions = telling_positions(row, seed, rng, len(params_list))
    draws = [(row, seed, params, position) for params, position in zip(params_list, positions, strict=False)]
    draws += [(slope, slope_seed, params, first + i) for i, params in enumerate(slope_params)]
    return [
        CrossedRequest(replace(crossed, params=params), replace(params, seed=row_seed), position)
        for crossed, row_seed, params, position in draws
    ]


def ladder_requests(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
    """Make a row of 1, 3, 9, 27 ... equal tokens on descending steps, so that the last of any N best has equals."""
    place = np.empty(site.size, np.int64)
    place[rng.permutation(site.size)] = np.arange(site.size)
    y = -0.5 * np.floor(np.log(2 * place + 1) / np.log(3))
    row = row_of(subject.capabilities, site, "ladder", y, SamplingParams())
    return make_requests(row, ["unseeded"], rng)


def flat_requests(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
    """Make a flat row with a top-k of 1, which keeps hardly any of the mass."""
    if not subject.has("top_k") or site.size < WIDE_SIZE:
        return []
    logits = torch.full((site.size,), -1 / 64, dtype=site.torch_dtype)
    logits[site.size // 2] = 0.0
    params = SamplingParams(top_k=1, filter_order=subject.filter_order)
    row = row_of(subject.capabilities, site, "one of a flat row", logits, params)
    return make_requests(row, ["unseeded"], rng)


def rows_of_last_ids(subject: SampleSubject, site: Site, rng: Generator) -> Iterator[CrossedRow]:
    """Make rows with their mass on the last ids alone, in both halves, and everywhere."""
    size, ids = site.size, np.arange(site.size)
    levels = {
        "the last id alone": ids == size - 1,
        "the last ids": ids >= size - (size % 1024 or 1024) % 16 - 1,
        "ties of both halves": np.isin(ids, [size // 4, size - 1 - size // 4, size - 1]),
        "all alike": np.ones(size, bool),
    }
    requests = [p for p in combinations(subject.capabilities, size) if p.temperature > 0]
    for name, has_mass in levels.items():
        logits = np.where(has_mass, 1.0, NEGLIGIBLE)
        yield row_of(subject.capabilities, site, name, logits, requests[int(rng.integers(len(requests)))])


def rows_of_special_values(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRow]:
    """Make a row of every kind of special values, and clean rows, for a vocabulary of at least 64."""
    rows = {**special_rows(rng, site.size), **{f"clean row {i}": gaussian(rng, site.size) for i in range(3)}}
    requests = [p for p in combinations(subject.capabilities, site.size) if p.temperature > 0]
    params_by_name = {name: requests[int(rng.integers(len(requests)))] for name in rows}
    if subject.has("top_k"):  # of tokens that a grammar leaves too few
        k = min(50, subject.capabilities.max_top_k or 50)
        params_by_name["one finite logit"] = SamplingParams(top_k=k, filter_order=subject.filter_order)
    return [
        row_of(
            subject.capabilities,
            site,
            name,
            torch.from_numpy(logits).to(site.torch_dtype),
            params_by_name[name],
        )
        for name, logits in rows.items()
    ]


def huge_rows(subject: SampleSubject, site: Site) -> list[CrossedRow]:
    """Make rows with logits so large that the quotient by the temperature, or the difference, overflows the dtype."""
    limit = torch.finfo(site.torch_dtype).max
    logits = torch.full((site.size,), -limit, dtype=torch.float64)
    logits[3], logits[site.size // 2], logits[-1] = 0.8 * limit, 0.9 * limit, 0.7 * limit
    logits, requests = logits.to(site.torch_dtype), [SamplingParams(temperature=t) for t in (0.5, 0.003)]
    return [row_of(subject.capabilities, site, "huge logits", logits, params) for params in requests]
