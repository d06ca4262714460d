"""Verifications by typical-p, by XTC, with the temperature last and by filters from moments: chains and drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from tokendraw import SamplingMetadata, SamplingParams
from tokendraw_testing import reference, reference_walk
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import describe, interval_choices, moment_choices
from tokendraw_testing.verify.draft_batch import DraftBatch, chains
from tokendraw_testing.verify.subject import VerifySubject

properties = Properties("verify")

_REQUESTS: Final = 64
_SIZE: Final = 300
_LAST: Final[dict[str, Any]] = {"temperature": 1.8}
"""Of requests whose filters look at another temperature."""
_WITHOUT_XTC: Final[dict[str, Any]] = {"xtc_probability": 0.0}


@properties.advertised(
    "verify ceilings", lambda c: c.seeding == "counter" and bool(interval_choices(c)), is_long=True
)
def ceilings(subject: VerifySubject, trial: Trial) -> str:
    """Seeded chains are those of rows cut from above too; drafts have every filter but XTC."""
    return judge_choices(subject, trial, interval_choices(subject.capabilities))


@properties.advertised(
    "verify filters from moments", lambda c: c.seeding == "counter" and bool(moment_choices(c)), is_long=True
)
def filters_from_moments(subject: VerifySubject, trial: Trial) -> str:
    """Seeded chains are those of rows with floors from their moments; so are drafts, and their probabilities."""
    return judge_choices(subject, trial, moment_choices(subject.capabilities))


def judge_choices(subject: VerifySubject, trial: Trial, choices: Sequence[dict[str, Any]]) -> str:
    """Compare chains and drafts of requests with one of the choices each to the reference."""
    size = min(_SIZE, subject.capabilities.max_vocab_size or _SIZE)
    num_named = num_chains = 0
    for mode, kind in subject.ways:
        rng = trial.generator(f"{mode} {kind}")
        batch = _batch(subject, rng, size, choices)
        drafts = batch.drafts(subject, kind)
        metadata = batch.metadata(drafts)
        found = chains(subject.verify(batch.logits(subject), drafts, metadata, mode))
        for i, tokens in enumerate(found):
            options: dict[str, Any] = {"probs": batch.probs[i]} if kind == "probs" else {}
            if kind == "logits":
                options = {"logits": [_prepared(row, batch.params[i]) for row in batch.draft[i]]}
            answer = _answer(subject, batch, i, mode=mode, **options)
            if answer.lead < reference.NEAR_TIE:
                continue
            num_named += 1
            trial.require(
                tokens == answer.tokens,
                f"{mode}, {kind}: request {i}, {describe(batch.params[i])}, needs the tokens {answer.tokens}, found "
                f"{tokens}",
            )
        num_chains += len(found)
        _require_drafts(subject, trial, batch)
    return f"{num_chains} chains, {num_named} of them named by the reference"


def _batch(
    subject: VerifySubject, rng: Generator, size: int, choices: Sequence[dict[str, Any]]
) -> DraftBatch:
    """Make requests with one of the choices each, and the probabilities of their drafts without XTC."""
    batch = DraftBatch.of(subject, rng, subject.effort.rows(_REQUESTS), size)
    choices = [
        _LAST | choice if choice.get("filter_order") == "temperature_last" else choice for choice in choices
    ]
    params = [
        replace(SamplingParams(seed=params.seed) if i % 3 else params, **choices[i % len(choices)])
        for i, params in enumerate(batch.params)
    ]
    probs = [
        np.array([expect(row, replace(p, **_WITHOUT_XTC)).probabilities for row in rows], np.float32)
        for rows, p in zip(batch.draft, params, strict=True)
    ]
    return replace(batch, params=params, probs=[q.reshape(-1, size) for q in probs])


def _prepared(row: Any, params: SamplingParams, position: int | None = None) -> reference.ReferenceRow:
    """Prepare a row; without a position as that of a draft."""
    is_applied = position is not None and params.xtc_probability > 0
    if is_applied:
        is_applied = reference.applies_xtc(params, params.seed or 0, position or 0)
    return reference.prepare(row, replace(params, xtc_probability=float(is_applied)))


def _answer(subject: VerifySubject, batch: DraftBatch, i: int, **options: Any) -> reference_walk.Answer:
    """Walk along the drafts of a request."""
    params, first = batch.params[i], batch.first[i]
    positions = [first + step for step in range(len(batch.target[i]))]
    rows = [_prepared(row, params, at) for row, at in zip(batch.target[i], positions, strict=True)]
    return reference_walk.walk(rows, batch.ids[i], params, positions, dtype=subject.gumbel_dtype, **options)


def _require_drafts(subject: VerifySubject, trial: Trial, batch: DraftBatch) -> None:
    """Draw a draft from the first row of each request, with the noise of drafts and without XTC."""
    rows = np.stack([target[0] for target in batch.target])
    metadata = SamplingMetadata.from_params(batch.params, device=subject.device, positions=batch.first)
    found = subject.draft(subject.upload(rows, batch.dtype), metadata).token_ids.tolist()
    streams = reference_walk.DRAFT_TOKEN, reference_walk.DRAFT_TILE
    for i, token in enumerate(found):
        params = batch.params[i]
        row = _prepared(rows[i], params)
        expected, lead = reference.draw(row, params.seed or 0, batch.first[i], subject.gumbel_dtype, streams)
        trial.require(
            token == expected or lead < reference.NEAR_TIE or not row.certain,
            f"request {i}, {describe(params)}, needs the draft {expected}, found {token}",
        )
