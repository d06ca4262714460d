"""Rows with NaN and infinities: what they give themselves, and neighbours that do not notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing.kit.property import Ask, Properties
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import random_seeds, seed_torch
from tokendraw_testing.rows.dtypes import in_turn
from tokendraw_testing.rows.expected import expect, possible_tokens
from tokendraw_testing.rows.poison import SIZE, poisons
from tokendraw_testing.rows.requests import batches, combinations, tokens_of
from tokendraw_testing.rows.sampling import Sampling

properties = Properties("sample")
Array = NDArray[Any]


@properties.required("poisoned rows")
def poisoned_rows(subject: Sampling, trial: Trial) -> str:
    """NaN counts as -inf, +inf draws among its equals, a row without any logit gives token 0."""
    rng = trial.generator("rows")
    kinds = poisons(rng)
    copies = subject.effort.rows(3, least=2)
    rows = [(name, kind.logits) for name, kind in kinds.items() for _ in range(copies)]
    logits = np.stack([row for _, row in rows])
    for turn, batch in enumerate(batches(subject, combinations(subject.capabilities, SIZE), len(rows))):
        seed_torch(rng)
        given, exact = in_turn(subject, turn, logits)
        found = tokens_of(subject, given, batch)
        for (name, _), row, params, token in zip(rows, exact, batch, found, strict=True):
            possible = possible_tokens(row, params, subject.capabilities.tie_rule)
            trial.require(possible[token], f"a row with {name} needs a token that is kept, found {token}")
    return f"{len(kinds)} kinds of rows"


@properties.required("neighbours of poisoned rows")
def neighbours(subject: Sampling, trial: Trial) -> str:
    """Rows beside poisoned ones draw what they draw beside clean ones: seeded to the bit, others in distribution."""
    rng = trial.generator("rows")
    kinds = list(poisons(rng).values())
    clean = np.stack([gaussian(rng, SIZE) for _ in range(2 * len(kinds) + 1)])
    poisoned = clean.copy()
    poisoned[1::2] = np.stack([kind.logits for kind in kinds])
    settled = [
        params
        for params in combinations(subject.capabilities, SIZE)
        if subject.capabilities.seeding == "counter" or params.temperature == 0
    ]
    for turn, batch in enumerate(batches(subject, settled, len(clean))):
        both = [in_turn(subject, turn, x)[0] for x in (clean, poisoned)]
        seeds, positions = random_seeds(rng, len(clean))
        rows = [replace(p, seed=s) if p.temperature else p for p, s in zip(batch, seeds, strict=True)]
        first, second = (tokens_of(subject, x, rows, positions)[::2] for x in both)
        apart = np.flatnonzero(first != second)
        trial.require(
            not len(apart),
            f"row {2 * apart[0] if len(apart) else 0} needs the token that it draws beside clean rows",
        )
    small = 60
    probabilities = np.exp(np.linspace(0, -3, small))
    row = np.log(probabilities).astype(np.float32)
    poison = [kind.logits for kind in poisons(rng, 64).values()]

    def experiment(generator: np.random.Generator, draws: int) -> Verdict:
        seed_torch(generator)
        batch = np.full((2 * len(poison), 64), -np.inf, np.float32)
        batch[::2, :small] = row
        batch[1::2] = np.stack(poison)
        calls = -(-draws // len(poison))
        repeated = torch.from_numpy(batch).repeat(min(calls, 64), 1)
        found = [subject.tokens(repeated, SamplingParams())[::2] for _ in range(-(-calls // 64))]
        tokens = np.concatenate(found)
        return fit(tokens, np.append(probabilities, np.zeros(4)))

    trial.judge("clean rows beside poisoned ones", experiment, subject.effort.tiled_draws)
    return f"{len(kinds)} kinds of rows"


@properties.required("+inf is drawn evenly")
def plus_infinity(subject: Sampling, trial: Trial) -> str:
    """A row with +inf draws uniformly among its +inf tokens, under any request."""
    rng = trial.generator("rows")
    row = gaussian(rng, 1100)
    best = np.array([5, 800, 1099])
    row[best], row[20] = np.inf, np.nan
    for i, params in enumerate(_some(combinations(subject.capabilities, 1100))):
        if params.temperature == 0 or params.top_k == 1:
            continue
        given, exact = in_turn(subject, i, row)
        probabilities = expect(exact, params, subject.capabilities.tie_rule).probabilities

        def experiment(
            generator: np.random.Generator,
            draws: int,
            params: SamplingParams = params,
            probabilities: Array = probabilities,
            given: torch.Tensor = given,
        ) -> Verdict:
            seed_torch(generator)
            batch = given.repeat(draws, 1)
            return fit(subject.tokens(batch, params), probabilities)

        trial.judge(f"request {i}", experiment, subject.effort.draws_of(600))
    return "3 tokens of +inf among NaN and finite ones"


@properties.advertised("valid flag", lambda c: c.valid_flag, Ask({"valid_flag": True}))
def valid_flag(subject: Sampling, trial: Trial) -> str:
    """False for rows with NaN or without anything above -inf, True for all others."""
    kinds = poisons(trial.generator("rows"))
    logits = np.stack([kind.logits for kind in kinds.values()])
    for turn, batch in enumerate(
        batches(subject, _some(combinations(subject.capabilities, SIZE)), len(logits))
    ):
        valid = subject.sample(in_turn(subject, turn, logits)[0], batch).valid.tolist()
        for (name, kind), found in zip(kinds.items(), valid, strict=True):
            trial.require(found == kind.valid, f"a row with {name} needs valid {kind.valid}, found {found}")
    return f"{len(kinds)} kinds of rows"


def _some(requests: list[SamplingParams]) -> list[SamplingParams]:
    """Pick a few of many requests, the first and the last among them."""
    return requests[:: max(1, len(requests) // 6)] + requests[-1:]
