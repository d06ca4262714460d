"""Requests crossed over dtypes, vocabularies, values, kinds of rows and sizes of batches, by a covering table."""

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
from tokendraw_testing.crossing.comparison import (
    CrossedRequest,
    make_requests,
    requests_in_turn,
    telling_positions,
)
from tokendraw_testing.crossing.factors import NO_FILTERS, Kind, Site, kinds
from tokendraw_testing.crossing.rows import PLATEAU, CrossedRow, crossed_row, round_to_dtype, row_of
from tokendraw_testing.crossing.table import covering_rows
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.logits_families import FAMILIES
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.requests import combinations, has_logprobs
from tokendraw_testing.rows.subjects import SampleSubject
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

properties = Properties("sample")

_NUMS_BEST: Final = (
    (5, 0, 1, None),
    (5, 21, 1),
    (50, 0, 21, None),
    (200, 5, 50),
    (5, 0, 21, 1, None, 50, 5, 200, -1),
)
"""Numbers of best tokens that the rows of a call ask for; the largest says how the call finds them."""


_COMBINED_SIZES: Final = (2, 31, 1025)
_WIDE_SIZE: Final = 1 << 14
_THREE_TILE_SIZE: Final = 3 * TILE_SIZE
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


@properties.required("crossed requests", is_long=True)
def crossed_requests(subject: SampleSubject, trial: Trial) -> str:
    """Each row, alone and in a large batch, draws a kept token, its argmax, or its seed's token."""
    rng = trial.generator("table")
    rows = covering_rows(subject, rng, on_thresholds=True)
    row_kinds = kinds(subject.capabilities)
    settled_kind: Kind = "seeded" if "seeded" in row_kinds else "unseeded"
    num_rows = num_named = 0
    seed_torch(rng)
    for number, (site, site_rows) in enumerate(rows.items()):
        copies = -(-subject.effort.batch_of(site.size) // len(site_rows))
        batch = requests_in_turn(site_rows, row_kinds, copies, rng)
        batch += _unfiltered_requests(subject, site, rng)
        calls = [([batch[i] for i in rng.permutation(len(batch))], subject.gumbel_dtype)]
        rows_alone = site_rows[number % 2 :: 2] if subject.effort.interpreted else site_rows
        calls += [(make_requests(row, [settled_kind], rng), subject.gumbel_dtype) for row in rows_alone]
        calls += [
            ([request for row in site_rows for request in make_requests(row, ["seeded"], rng)], dtype)
            for dtype in subject.capabilities.gumbel_dtypes
            if dtype != subject.gumbel_dtype and settled_kind == "seeded"
        ]
        for call, dtype in calls:
            num_rows += len(call)
            num_named += judge_call(subject, trial, call, dtype)
    for batch in _combined_requests(subject, settled_kind, rng):
        num_rows += len(batch)
        num_named += judge_call(subject, trial, batch)
    cases = sum(map(len, rows.values()))
    where = f"{len(rows)} dtypes and vocabularies"
    return f"{num_rows} rows of {cases} cases in {where}, {num_named} of them of known token"


def _combined_requests(subject: SampleSubject, kind: Kind, rng: Generator) -> Iterator[list[CrossedRequest]]:
    """Make batches of every combination of filters, also three at once, over rows of every family and few ids."""
    limit = subject.capabilities.max_vocab_size
    for dtype, size in itertools.product(subject.capabilities.dtypes, _COMBINED_SIZES):
        if size > (limit or size):
            continue
        requests = combinations(subject.capabilities, size)[:: subject.effort.fewer]
        families = itertools.cycle(FAMILIES.items())
        rows = [
            row_of(
                subject.capabilities,
                Site(dtype, size),
                name,
                round_to_dtype(family(rng, size), getattr(torch, dtype)),
                params,
            )
            for params, (name, family) in zip(requests, families, strict=False)
        ]
        yield [request for row in rows for request in make_requests(row, [kind], rng)]


def _unfiltered_requests(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
    """Make requests that keep all tokens, of a sloping row, and of a row with 0.0002 of its mass on 500 tokens.

    The latter bring seeds that draw one of the 500.
    """
    if subject.capabilities.seeding != "counter" or site.size < _THREE_TILE_SIZE:
        return []
    filters = {name for name, _ in subject.capabilities.filters}
    if subject.capabilities.max_top_k is not None:
        filters.remove("top_k")
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


@properties.advertised("crossed logprobs", has_logprobs, is_long=True)
def crossed_logprobs(subject: SampleSubject, trial: Trial) -> str:
    """Values, N best, ranks, log_kept_mass and tokens hold in every mode, over a table of pairs."""
    rng = trial.generator("table")
    rows = covering_rows(subject, rng)
    row_kinds, modes = kinds(subject.capabilities), subject.capabilities.logprobs_modes
    dtypes = subject.capabilities.gumbel_dtypes
    num_rows = 0
    seed_torch(rng)
    for number, (site, site_rows) in enumerate(rows.items()):
        for turn, mode in enumerate(modes):
            if subject.effort.skips(site.size, number + turn):
                continue
            nums_best = _NUMS_BEST[(number + 2 * turn) % len(_NUMS_BEST)]
            copies = subject.effort.copies(10, site.size) if turn == number % len(modes) else 1
            requests = requests_in_turn(site_rows, row_kinds, copies, rng, turn)
            batch = [
                request.with_logprobs(nums_best[i % len(nums_best)]) for i, request in enumerate(requests)
            ]
            batch += [
                request.with_logprobs(0)
                for row in _flat_rows(subject, site)
                for request in make_requests(row, ["unseeded"], rng)
            ]
            ladder = [] if turn and subject.effort.mixed else _ladder_requests(subject, site, rng)
            batch += [request.with_logprobs(most) for most in nums_best if most != -1 for request in ladder]
            dtype = dtypes[(number + turn) % len(dtypes)]
            judge_logprobs(subject, trial, batch, mode, dtype)
            judge_logprobs(
                subject, trial, [request.with_logprobs(nums_best[0]) for request in ladder], mode, dtype
            )
            num_rows += len(batch) + len(ladder)
    return f"{num_rows} rows in {len(modes)} modes over {len(rows)} dtypes and vocabularies"


def _ladder_requests(subject: SampleSubject, site: Site, rng: Generator) -> list[CrossedRequest]:
    """Make a row of 1, 3, 9, 27 ... equal tokens on descending steps, so that the last of any N best has equals."""
    place = np.empty(site.size, np.int64)
    place[rng.permutation(site.size)] = np.arange(site.size)
    y = -0.5 * np.floor(np.log(2 * place + 1) / np.log(3))
    row = row_of(subject.capabilities, site, "ladder", y, SamplingParams())
    return make_requests(row, ["unseeded"], rng)


def _flat_rows(subject: SampleSubject, site: Site) -> list[CrossedRow]:
    """Make a flat row with a top-k of 1, which keeps hardly any of the mass."""
    if not subject.has("top_k") or site.size < _WIDE_SIZE:
        return []
    logits = torch.full((site.size,), -1 / 64, dtype=site.torch_dtype)
    logits[site.size // 2] = 0.0
    params = SamplingParams(top_k=1, filter_order=subject.filter_order)
    return [row_of(subject.capabilities, site, "one of a flat row", logits, params)]
