"""Seeded verifications: the chain of (seed, position, logits, drafts), in any batch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw.plugin import GumbelDtype
from tokendraw.tools import all_of
from tokendraw_testing import reference
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.expectation import LEAST_EQUAL_SHARE
from tokendraw_testing.rows.noise_precision import (
    KEPT_COUNTS,
    POSITION,
    VOCAB_SIZE,
    lucky_rows,
    place_row,
    telling_rows,
)
from tokendraw_testing.rows.requests import describe, has_counter
from tokendraw_testing.verify.draft_batch import DraftBatch, chains, require_same
from tokendraw_testing.verify.draws import markov_case
from tokendraw_testing.verify.speculation import judge
from tokendraw_testing.verify.subject import VerifySubject, draft_refusal
from tokendraw_testing.verify.telling_drafts import DRAFT, telling_batch

properties = Properties("verify")
_COLD_TEMPERATURE: Final = 1e-4
"""Temperature of rows that draw their largest token."""
Array = NDArray[Any]


@properties.advertised("verify seeded chains", has_counter, draft_refusal(params=SamplingParams(seed=1)))
def seeded_chains(subject: VerifySubject, trial: Trial) -> str:
    """Chains equal the walk of the contract, token by token, 99.99 % of them and all that are no near tie."""
    return _require_walks(subject, trial, subject.gumbel_dtype)


@properties.advertised(
    "verify fp64 noise", lambda c: "fp64" in c.gumbel_dtypes, Refusal({"gumbel_dtype": "fp64"})
)
def fp64_noise(subject: VerifySubject, trial: Trial) -> str:
    """Seeded chains equal those of the contract with 53-bit uniforms and float64; without seeds they follow it."""
    if not has_counter(subject.capabilities):
        view = subject.with_need(gumbel_dtype="fp64")
        for mode in subject.capabilities.verify_modes:
            case = markov_case(trial, subject.capabilities.draft_kinds[0], mode)
            judge(view, trial, f"Markov, {mode}", case, subject.effort.draws // 4, seeded=False)
        return "distribution; without seeds nothing tells float64 noise from float32"
    return _require_walks(subject, trial, "fp64")


def _require_walks(subject: VerifySubject, trial: Trial, dtype: GumbelDtype) -> str:
    num_chains = num_same = 0
    sizes = (2, 31, 1025, 2100) if dtype == subject.gumbel_dtype else (1025,)
    for dtype_name, size, count in subject.share_requests(sizes, 36):
        rng = trial.generator(f"{dtype} {size} {dtype_name}")
        batch = DraftBatch.of(subject, rng, count, size, dtype=dtype_name)
        certain = [i for i in range(len(batch)) if batch.is_certain(subject, i)]
        for mode, kind in subject.ways:
            results = chains(batch.verify(subject, mode, kind, gumbel_dtype=dtype))
            for i, expected in zip(certain, batch.walks(mode, kind, dtype, certain), strict=True):
                tokens = results[i]
                num_chains, num_same = num_chains + 1, num_same + int(tokens == expected.tokens)
                trial.require(
                    tokens == expected.tokens or expected.lead < reference.NEAR_TIE,
                    f"V = {size}, {dtype_name}, {mode}, {kind}, {describe(batch.params[i])}, "
                    f"seed {batch.params[i].seed}, from position {batch.first[i]}, drafts {batch.ids[i]}: "
                    f"needs {expected.tokens}, found {tokens}",
                )
    trial.require(
        num_same >= LEAST_EQUAL_SHARE * num_chains - 1,
        f"{num_chains} chains need {LEAST_EQUAL_SHARE:.2%} of the reference's, found {num_same}",
    )
    precision_text = f"{_require_precision(subject, trial, dtype)} that tell {dtype} noise"
    return f"{num_chains} chains over mixed filters, {num_same} of them the reference's; {precision_text}"


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
        num_rows += _require_drafts(subject, trial, dtype, plain_params, name, has_top_k=has_top_k)
    return num_rows


def _require_drafts(
    subject: VerifySubject,
    trial: Trial,
    dtype: GumbelDtype,
    plain_params: SamplingParams,
    name: str,
    *,
    has_top_k: bool,
) -> int:
    rows = [*telling_rows(*DRAFT), *lucky_rows(*DRAFT)]
    params = [replace(plain_params, seed=row.seed, top_k=row.kept if has_top_k else 0) for row in rows]
    metadata = SamplingMetadata.from_params(params, device=subject.device, positions=[POSITION] * len(rows))
    logits = torch.stack([place_row(row, getattr(torch, name), VOCAB_SIZE) for row in rows])
    tokens = subject.draft(logits.to(subject.device), metadata, gumbel_dtype=dtype).token_ids.tolist()
    for x, request, token in zip(logits.float().numpy(), params, tokens, strict=True):
        assert request.seed is not None
        expected, _ = reference.draw(reference.prepare(x, request), request.seed, POSITION, dtype, DRAFT)
        trial.require(
            token == expected,
            f"{name}, {describe(request)}, seed {request.seed}, position {POSITION} needs the draft {expected} of "
            f"{dtype} noise, found {token}",
        )
    return len(rows)


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
