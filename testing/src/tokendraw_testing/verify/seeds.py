"""Seeded verifications: the chain of (seed, position, logits, drafts), in any batch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.plugin import GumbelDtype
from tokendraw.tools import all_of
from tokendraw_testing.crossing.factors import Site
from tokendraw_testing.crossing.near_ties import telling_requests
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.noise_precision import (
    KEPT_COUNTS,
    VOCAB_SIZE,
    lucky_rows,
    telling_rows,
)
from tokendraw_testing.rows.requests import has_counter
from tokendraw_testing.verify.crossing.drafts import require_drafts
from tokendraw_testing.verify.draft_batch import DraftBatch, chains, require_same
from tokendraw_testing.verify.draws import markov_case
from tokendraw_testing.verify.speculation import judge
from tokendraw_testing.verify.subject import VerifySubject
from tokendraw_testing.verify.telling_drafts import DRAFT, telling_batch

properties = Properties("verify")
_COLD_TEMPERATURE: Final = 1e-4
"""Temperature of rows that draw their largest token."""
Array = NDArray[Any]


@properties.advertised("verify noise precision", lambda c: has_counter(c) or len(c.gumbel_dtypes) > 1)
def noise_precision(subject: VerifySubject, trial: Trial) -> str:
    """Seeded requests with different chains in 53-bit and 32-bit noise get the chain of the advertised precision."""
    capabilities, dtypes = subject.capabilities, subject.noise_dtypes
    if not has_counter(capabilities):
        view = subject.with_need(gumbel_dtype=dtypes[-1])
        for mode in capabilities.verify_modes:
            case = markov_case(trial, capabilities.draft_kinds[0], mode)
            judge(view, trial, f"Markov, {mode}", case, subject.effort.draws // 4, seeded=False)
        return f"{dtypes[-1]}, distribution; without seeds nothing tells float64 noise from float32"
    num_rows = sum(_require_precision(subject, trial, dtype) for dtype in dtypes)
    if not num_rows:
        trial.skip(f"needs a vocabulary of {VOCAB_SIZE}, found a limit of {capabilities.max_vocab_size}")
    return f"{num_rows} rows that tell {all_of(dtypes)} noise"


def _require_precision(subject: VerifySubject, trial: Trial, dtype: GumbelDtype) -> int:
    """Require the chains and drafts of this noise precision; return the number of compared rows."""
    capabilities, num_rows = subject.capabilities, 0
    if (capabilities.max_vocab_size or VOCAB_SIZE) < VOCAB_SIZE:
        return num_rows
    plain_params = SamplingParams(filter_order=subject.filter_order)
    filters = ("top_k", "per_row") in capabilities.filters and (
        capabilities.max_top_k or max(KEPT_COUNTS)
    ) >= max(KEPT_COUNTS)
    looks = [(name, has_top_k) for name in capabilities.dtypes for has_top_k in (False, True)[: 1 + filters]]
    for name, has_top_k in looks if not subject.effort.mixed else looks[:2]:
        chosen_ways = subject.ways if name == capabilities.dtypes[0] else subject.outer_ways
        for (mode, kind), rows in itertools.product(chosen_ways, (telling_rows, lucky_rows)):
            batch = telling_batch(plain_params, name, filtered=has_top_k, rows=rows)
            results = chains(batch.verify(subject, mode, kind, gumbel_dtype=dtype))
            expected = [answer.tokens for answer in batch.walks(mode, kind, dtype)]
            require_same(trial, expected, results, f"{name}, {mode}, {kind}: chains of {dtype} noise")
            num_rows += len(batch)
    for name in capabilities.dtypes if not subject.effort.mixed else capabilities.dtypes[:1]:
        drafts = telling_requests(subject, Site(name, VOCAB_SIZE), DRAFT, per_row=True)
        require_drafts(subject, trial, drafts, dtype)
        num_rows += len(drafts)
    return num_rows


@properties.advertised(
    "verify batch invariance", lambda c: c.batch_invariant, Refusal({"batch_invariant": True})
)
def batch_invariance(subject: VerifySubject, trial: Trial) -> str:
    """A seeded request gets the same chain alone, in any batch, in any place, and beside any mates."""
    counter = has_counter(subject.capabilities)
    count = subject.effort.rows(12, least=3)
    sizes = [n for n in (2, 9, 64) if n <= max(subject.effort.batch_sizes)]
    rng = trial.generator("rows")
    for (mode, kind), dtype in zip(subject.ways, subject.cycle_dtypes(), strict=False):
        batch = DraftBatch.of(subject, rng, count, 1100, dtype=dtype)
        if not counter:
            _make_deterministic(subject, batch)
        chains_alone = [chains(batch.select([i]).verify(subject, mode, kind))[0] for i in range(count)]
        for rows in sizes:
            order = rng.permutation(rows) % count
            results = chains(batch.select(order).verify(subject, mode, kind))
            places = [place for place, i in enumerate(order) if results[place] != chains_alone[i]]
            trial.require(
                not places,
                f"{mode}, {kind}, B = {rows}: request {places[0] if places else 0} needs the chain that it gets alone, "
                f"{len(places)} requests differ",
            )
    what = "" if counter else " greedy" if subject.capabilities.greedy else " cold"
    return f"{count}{what} requests alone and in batches of {all_of(map(str, sizes))}"


def _make_deterministic(subject: VerifySubject, batch: DraftBatch) -> None:
    """Make all requests greedy or cold enough for a single token, with drafts often accepted by the target."""
    temperature = 0.0 if subject.capabilities.greedy else _COLD_TEMPERATURE
    for i, (rows, ids) in enumerate(zip(batch.target, batch.ids, strict=True)):
        batch.params[i] = replace(batch.params[i], temperature=temperature)
        best = rows.argmax(1)
        rows[np.arange(len(rows)), best] += 1  # no other token is as large in a dtype of few bits
        ids[::2] = best[: len(ids) : 2].tolist()
