"""Requests crossed over dtypes, vocabularies, values, kinds of rows and sizes of batches, by a covering table."""

from __future__ import annotations

from typing import Final

import torch

from tokendraw._exchange.params import SamplingParams
from tokendraw.testing.crossing.comparison import requested
from tokendraw.testing.crossing.factors import Kind, Site, kinds
from tokendraw.testing.crossing.rows import CrossedRow
from tokendraw.testing.kit.property import Properties
from tokendraw.testing.kit.trial import Trial
from tokendraw.testing.rows.draws import seed_torch
from tokendraw.testing.rows.requests import has_logprobs
from tokendraw.testing.rows.sampling import Sampling
from tokendraw.testing.sample.crossed_calls import judge_call, judge_logprobs, table

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


@properties.required("crossed requests")
def crossed_requests(subject: Sampling, trial: Trial) -> str:
    """Each row, alone and in a large batch, draws a kept token, its argmax, or its seed's token."""
    rng = trial.generator("table")
    rows = table(subject, rng)
    offered = kinds(subject.capabilities)
    settled: Kind = "seeded" if "seeded" in offered else "unseeded"
    looked = named = 0
    seed_torch(rng)
    for site, crossed in rows.items():
        copies = -(-subject.effort.batch_of(site.size) // len(crossed))
        batch = [
            request
            for i, row in enumerate(crossed)
            for request in requested(row, [offered[(i + j) % len(offered)] for j in range(copies)], rng)
        ]
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
            judge_logprobs(subject, trial, batch, mode, dtypes[(number + turn) % len(dtypes)])
            looked += len(batch)
    return f"{looked} rows in {len(modes)} modes over {len(rows)} dtypes and vocabularies"


def _flat(subject: Sampling, site: Site) -> list[CrossedRow]:
    """Make a flat row whose top-k keeps one token of all, and so hardly any of the mass."""
    if not subject.has("top_k") or site.size < _WIDE:
        return []
    logits = torch.full((site.size,), -1 / 64, dtype=site.torch_dtype)
    logits[site.size // 2] = 0.0
    order = (*subject.capabilities.filter_orders, "top_k_first")[0]
    params = SamplingParams(top_k=1, filter_order=order)
    return [CrossedRow(site, "one of a flat row", logits, params, subject.capabilities.tie_rule)]
