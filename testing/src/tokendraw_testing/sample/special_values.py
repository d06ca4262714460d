"""Rows with NaN and infinities, and their batch neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing.kit.property import Properties, Refusal
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import fit_experiment, random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import round_in_turn
from tokendraw_testing.rows.expectation import expect, possible_tokens
from tokendraw_testing.rows.requests import batches, combinations, tokens_of
from tokendraw_testing.rows.special_rows import SPECIAL_SIZE, special_rows
from tokendraw_testing.rows.subjects import SampleSubject

properties = Properties("sample")
Array = NDArray[Any]


@properties.required("poisoned rows")
def special_rows_draw(subject: SampleSubject, trial: Trial) -> str:
    """NaN counts as -inf, +inf draws among its equals, a row without any logit gives token 0."""
    rng = trial.generator("rows")
    kinds = special_rows(rng)
    copies = subject.effort.rows(3, least=2)
    rows = [(name, kind.logits) for name, kind in kinds.items() for _ in range(copies)]
    logits = np.stack([row for _, row in rows])
    requests = combinations(subject.capabilities, SPECIAL_SIZE)
    for turn, batch in enumerate(batches(subject, requests, len(rows))):
        seed_torch(rng)
        rounded_logits, values = round_in_turn(subject, turn, logits)
        tokens = tokens_of(subject, rounded_logits, batch)
        for (name, _), row, params, token in zip(rows, values, batch, tokens, strict=True):
            possible = possible_tokens(row, params, subject.capabilities.tie_rule)
            trial.require(possible[token], f"a row with {name} needs a token that is kept, found {token}")
    return f"{len(kinds)} kinds of rows"


@properties.required("neighbours of poisoned rows")
def batch_neighbours(subject: SampleSubject, trial: Trial) -> str:
    """Batch neighbours of poisoned rows draw as beside clean rows: seeded to the bit, others in distribution."""
    rng = trial.generator("rows")
    kinds = list(special_rows(rng).values())
    clean_logits = np.stack([gaussian(rng, SPECIAL_SIZE) for _ in range(2 * len(kinds) + 1)])
    poisoned_logits = clean_logits.copy()
    poisoned_logits[1::2] = np.stack([kind.logits for kind in kinds])
    settled_requests = [
        params
        for params in combinations(subject.capabilities, SPECIAL_SIZE)
        if subject.capabilities.seeding == "counter" or params.temperature == 0
    ]
    for turn, batch in enumerate(batches(subject, settled_requests, len(clean_logits))):
        logits_pair = [round_in_turn(subject, turn, x)[0] for x in (clean_logits, poisoned_logits)]
        seeds, positions = random_seeds(rng, len(clean_logits))
        rows = [replace(p, seed=s) if p.temperature else p for p, s in zip(batch, seeds, strict=True)]
        first, second = (tokens_of(subject, x, rows, positions)[::2] for x in logits_pair)
        mismatches = np.flatnonzero(first != second)
        trial.require(
            not len(mismatches),
            f"row {2 * mismatches[0] if len(mismatches) else 0} needs the token that it draws beside clean rows",
        )
    num_tokens = 60
    probabilities = np.exp(np.linspace(0, -3, num_tokens))
    row = np.log(probabilities).astype(np.float32)
    poison = [kind.logits for kind in special_rows(rng, 64).values()]

    def experiment(generator: Generator, draws: int) -> Verdict:
        seed_torch(generator)
        batch = np.full((2 * len(poison), 64), -np.inf, np.float32)
        batch[::2, :num_tokens] = row
        batch[1::2] = np.stack(poison)
        calls = -(-draws // len(poison))
        logits = torch.from_numpy(batch).repeat(min(calls, 64), 1)
        parts = [subject.tokens(logits, SamplingParams())[::2] for _ in range(-(-calls // 64))]
        tokens = np.concatenate(parts)
        return fit(tokens, np.append(probabilities, np.zeros(4)))

    trial.judge("clean rows beside poisoned ones", experiment, subject.effort.tiled_draws)
    return f"{len(kinds)} kinds of rows"


@properties.required("+inf is drawn evenly")
def plus_infinity(subject: SampleSubject, trial: Trial) -> str:
    """A row with +inf draws uniformly among its +inf tokens, under any request."""
    rng = trial.generator("rows")
    row = gaussian(rng, 1100)
    best = np.array([5, 800, 1099])
    row[best], row[20] = np.inf, np.nan
    for i, params in enumerate(_pick_requests(combinations(subject.capabilities, 1100))):
        if params.temperature == 0 or params.top_k == 1:
            continue
        rounded_row, values = round_in_turn(subject, i, row)
        probabilities = expect(values, params, subject.capabilities.tie_rule).probabilities

        experiment = fit_experiment(subject, rounded_row, params, probabilities)
        trial.judge(f"request {i}", experiment, subject.effort.draws_of(600))
    return "3 tokens of +inf among NaN and finite ones"


@properties.advertised("valid flag", lambda c: c.valid_flag, Refusal({"valid_flag": True}))
def valid_flag(subject: SampleSubject, trial: Trial) -> str:
    """False for rows with NaN or without anything above -inf, True for all others."""
    kinds = special_rows(trial.generator("rows"))
    logits = np.stack([kind.logits for kind in kinds.values()])
    for turn, batch in enumerate(
        batches(subject, _pick_requests(combinations(subject.capabilities, SPECIAL_SIZE)), len(logits))
    ):
        valid = subject.sample(round_in_turn(subject, turn, logits)[0], batch).valid.tolist()
        for (name, kind), flag in zip(kinds.items(), valid, strict=True):
            trial.require(flag == kind.valid, f"a row with {name} needs valid {kind.valid}, found {flag}")
    return f"{len(kinds)} kinds of rows"


def _pick_requests(requests: list[SamplingParams]) -> list[SamplingParams]:
    """Pick a few of many requests, the first and the last among them."""
    return requests[:: max(1, len(requests) // 6)] + requests[-1:]
