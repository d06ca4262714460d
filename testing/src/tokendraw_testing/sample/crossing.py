"""Requests crossed over dtypes, vocabularies, values, kinds of rows and sizes of batches, by a covering table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from tokendraw import SamplingParams
from tokendraw.philox import TILE_SIZE
from tokendraw_testing.crossing.comparison import Request, requested, telling_positions
from tokendraw_testing.crossing.factors import NO_FILTERS, Kind, Site, kinds
from tokendraw_testing.crossing.rows import PLATEAU, CrossedRow, crossed_row, in_dtype
from tokendraw_testing.crossing.table import by_value, designed, table
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.requests import has_logprobs
from tokendraw_testing.rows.sampling import Sampling
from tokendraw_testing.sample.crossed_calls import judge_call, judge_logprobs

properties = Properties("sample")

_SHOWN: Final = (
    (5, 0, 1, None),
    (5, 21, 1),
    (50, 0, 21, None),
    (200, 5, 50),
    (5, 0, 21, 1, None, 50, 5, 200, -1),
)
"""Numbers of best tokens that the rows of a call ask for; the largest says how the call finds them."""


_WIDE: Final = 1 << 14
_THREE_TILES: Final = 3 * TILE_SIZE
_NEARLY_ALL: Final = 0.9995
_KEEPING: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"top_p": 1 - 2e-5},
    {"min_p": 1e-8},
    {"top_k": 1500},
    {"top_k": 2**30},
    {"top_k": 1500, "min_p": 1e-8},
)
"""Requests that keep all tokens of a row whose heavy ones are 905."""


@properties.required("crossed requests")
def crossed_requests(subject: Sampling, trial: Trial) -> str:
    """Each row, alone and in a large batch, draws a kept token, its argmax, or its seed's token."""
    rng = trial.generator("table")
    rows = table(subject, rng)
    offered = kinds(subject.capabilities)
    settled: Kind = "seeded" if "seeded" in offered else "unseeded"
    looked = named = 0
    seed_torch(rng)
    for site, covered in rows.items():
        crossed = covered + ([] if site.size > _WIDE else by_value(subject.capabilities, site, rng))
        copies = -(-subject.effort.batch_of(site.size) // len(crossed))
        batch = [
            request
            for i, row in enumerate(crossed)
            for request in requested(row, [offered[(i + j) % len(offered)] for j in range(copies)], rng)
        ]
        spared = _spared(subject, site, rng)
        batch += spared
        calls = [([batch[i] for i in rng.permutation(len(batch))], subject.gumbel_dtype)]
        calls += [(requested(row, [settled], rng), subject.gumbel_dtype) for row in crossed]
        calls += [
            ([request for row in crossed for request in requested(row, ["seeded"], rng)], dtype)
            for dtype in subject.capabilities.gumbel_dtypes
            if dtype != subject.gumbel_dtype and settled == "seeded"
        ]
        for call, dtype in calls:
            looked += len(call)
            named += judge_call(subject, trial, call, dtype)
    cases = sum(map(len, rows.values()))
    return f"{looked} rows of {cases} cases in {len(rows)} dtypes and vocabularies, {named} of them of known token"


def _spared(subject: Sampling, site: Site, rng: np.random.Generator) -> list[Request]:
    """Make requests that keep all tokens, of a row that slopes, and of one with 500 that hold 0.0002 of the mass.

    The latter bring seeds that draw one of the 500.
    """
    if subject.capabilities.seeding != "counter" or site.size < _THREE_TILES:
        return []
    filters = {name for name, _ in subject.capabilities.filters}
    if subject.capabilities.max_top_k is not None:
        filters.remove("top_k")
    order = (*subject.capabilities.filter_orders, "top_k_first")[0]
    asked = [SamplingParams(**given, filter_order=order) for given in _KEEPING if given.keys() <= filters]
    case = {"site": site, "design": PLATEAU, **NO_FILTERS, "top_p": _NEARLY_ALL}
    row = crossed_row(case, rng, subject.capabilities.tie_rule)
    y = -2 * rng.permutation(site.size) / site.size
    slope = replace(row, design="a slope", logits=in_dtype(y, site.torch_dtype))
    (seed, other), (first, _) = random_seeds(rng, 2)
    sloping = [params for params in asked if params.top_k in (0, 2**30)]
    drawn = [
        *zip([row] * len(asked), asked, telling_positions(row, seed, rng, len(asked)), strict=False),
        *((slope, params, first + i) for i, params in enumerate(sloping)),
    ]
    return [
        Request(replace(own, params=params), replace(params, seed=other if own is slope else seed), position)
        for own, params, position in drawn
    ]


@properties.required("widest vocabulary")
def widest(subject: Sampling, trial: Trial) -> str:
    """A row of every design is drawn from rightly in every dtype of a vocabulary of more than 262,144 ids."""
    limit, size = subject.capabilities.max_vocab_size, subject.effort.widest
    if size is None:
        trial.skip("needs a vocabulary above 262,144, found an effort without one")
    if (limit or size) < size:
        trial.skip(f"needs a vocabulary of {size:,}, found a limit of {limit:,}")
    offered = kinds(subject.capabilities)
    for dtype in subject.capabilities.dtypes:
        rng = trial.generator(dtype)
        seed_torch(rng)
        rows = designed(subject.capabilities, Site(dtype, size), rng)
        drawn = [kind for kind in offered if not kind.startswith("greedy")][-1:]
        batch = [request for row in rows for request in requested(row, drawn, rng)]
        batch += requested(rows[0], offered, rng)
        judge_call(subject, trial, batch)
    return f"V = {size} in {len(subject.capabilities.dtypes)} dtypes"


@properties.advertised("crossed logprobs", has_logprobs)
def crossed_logprobs(subject: Sampling, trial: Trial) -> str:
    """Values, N best, ranks, log_kept_mass and tokens hold in every mode, over a table of pairs."""
    rng = trial.generator("table")
    rows = table(subject, rng)
    offered, modes = kinds(subject.capabilities), subject.capabilities.logprobs_modes
    dtypes = subject.capabilities.gumbel_dtypes
    looked = 0
    seed_torch(rng)
    for number, (site, crossed) in enumerate(rows.items()):
        for turn, mode in enumerate(modes):
            if subject.effort.skips(site.size, number + turn):
                continue
            shown = _SHOWN[(number + 2 * turn) % len(_SHOWN)]
            copies = subject.effort.shown_copies(site.size) if turn == number % len(modes) else 1
            batch = [
                request.showing(shown[(i * copies + j) % len(shown)])
                for i, row in enumerate(crossed)
                for j, request in enumerate(
                    requested(row, [offered[(i + j + turn) % len(offered)] for j in range(copies)], rng)
                )
            ]
            batch += [
                request.showing(0)
                for row in _flat(subject, site)
                for request in requested(row, ["unseeded"], rng)
            ]
            ladder = [] if turn and subject.effort.mixed else _ladder(subject, site, rng)
            batch += [request.showing(most) for most in shown if most != -1 for request in ladder]
            dtype = dtypes[(number + turn) % len(dtypes)]
            judge_logprobs(subject, trial, batch, mode, dtype)
            judge_logprobs(subject, trial, [request.showing(shown[0]) for request in ladder], mode, dtype)
            looked += len(batch) + len(ladder)
    return f"{looked} rows in {len(modes)} modes over {len(rows)} dtypes and vocabularies"


def _ladder(subject: Sampling, site: Site, rng: np.random.Generator) -> list[Request]:
    """Make a row of 1, 3, 9, 27 ... equal tokens on descending steps, so that the last of any N best has equals."""
    place = np.empty(site.size, np.int64)
    place[rng.permutation(site.size)] = np.arange(site.size)
    y = -0.5 * np.floor(np.log(2 * place + 1) / np.log(3))
    row = CrossedRow(
        site, "ladder", in_dtype(y, site.torch_dtype), SamplingParams(), subject.capabilities.tie_rule
    )
    return requested(row, ["unseeded"], rng)


def _flat(subject: Sampling, site: Site) -> list[CrossedRow]:
    """Make a flat row whose top-k keeps one token of all, and so hardly any of the mass."""
    if not subject.has("top_k") or site.size < _WIDE:
        return []
    logits = torch.full((site.size,), -1 / 64, dtype=site.torch_dtype)
    logits[site.size // 2] = 0.0
    order = (*subject.capabilities.filter_orders, "top_k_first")[0]
    params = SamplingParams(top_k=1, filter_order=order)
    return [CrossedRow(site, "one of a flat row", logits, params, subject.capabilities.tie_rule)]
