"""Distributions of rows with infinities, and of the batch neighbours of poisoned rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.random import Generator

from tokendraw import SamplingParams
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import fit
from tokendraw_testing.kit.trial import Trial, Verdict
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.rows.draws import fit_experiment, seed_torch
from tokendraw_testing.rows.dtypes import round_in_turn
from tokendraw_testing.rows.expectation import expect
from tokendraw_testing.rows.requests import combinations
from tokendraw_testing.rows.special_rows import special_rows
from tokendraw_testing.rows.subjects import SampleSubject

properties = Properties("sample")


@properties.required("neighbours of poisoned rows")
def batch_neighbours(subject: SampleSubject, trial: Trial) -> str:
    """Batch neighbours of poisoned rows follow their distribution without seeds."""
    num_tokens, rng = 60, trial.generator("rows")
    probabilities = np.exp(np.linspace(0, -3, num_tokens))
    poison = [kind.logits for kind in special_rows(rng, 64).values()]
    batch = np.full((2 * len(poison), 64), -np.inf, np.float32)
    batch[::2, :num_tokens] = np.log(probabilities)
    batch[1::2] = np.stack(poison)

    def experiment(generator: Generator, draws: int) -> Verdict:
        seed_torch(generator)
        calls = -(-draws // len(poison))
        logits = torch.from_numpy(batch).repeat(min(calls, 64), 1)
        parts = [subject.tokens(logits, SamplingParams())[::2] for _ in range(-(-calls // 64))]
        return fit(np.concatenate(parts), np.append(probabilities, np.zeros(4)))

    trial.judge("clean rows beside poisoned ones", experiment, subject.effort.tiled_draws)
    return f"{len(poison)} kinds of rows"


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


def _pick_requests(requests: list[SamplingParams]) -> list[SamplingParams]:
    """Pick a few of many requests, the first and the last among them."""
    return requests[:: max(1, len(requests) // 6)] + requests[-1:]
