"""Makes many draws from one row of logits, in as few calls as fit the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw_testing.kit.statistical_tests import fit, pool_tokens
from tokendraw_testing.kit.trial import Experiment, Trial, Verdict
from tokendraw_testing.rows.expectation import Expectation, expect
from tokendraw_testing.rows.subjects import SampleSubject, equal_rows

Array = NDArray[Any]


def seed_torch(rng: Generator) -> None:
    """Seed torch from ``rng`` for the unseeded rows of the next calls."""
    torch.manual_seed(int(rng.integers(2**63)))


def random_seeds(rng: Generator, rows: int) -> tuple[list[int], list[int]]:
    """Make seeds over all 64 bits and positions over 40 bits, for unrelated rows."""
    return rng.integers(0, 2**64, rows, np.uint64).tolist(), rng.integers(0, 2**40, rows).tolist()


def draw_many(
    subject: SampleSubject,
    logits: Array | torch.Tensor,
    params: SamplingParams,
    draws: int,
    rng: Generator,
    *,
    seeded: bool = False,
) -> Array:
    """Draw ``draws`` tokens from one row [V] in any dtype: the rows of a batch differ only in their noise."""
    rows = max(1, min(draws, subject.effort.elements // len(logits), 1 << 16))
    row = torch.as_tensor(logits).to(subject.device)
    batch = row.expand(rows, -1) if len(logits) > 1 << 14 else row.repeat(rows, 1)
    seed_torch(rng)
    parts = []
    for start in range(0, draws, rows):
        count = min(rows, draws - start)
        if seeded:
            seeds, positions = random_seeds(rng, count)
            parts.append(seeded_tokens(subject, batch[:count], params, seeds, positions))
        else:
            parts.append(subject.tokens(batch[:count], params))
    return np.concatenate(parts)


def seeded_tokens(
    subject: SampleSubject,
    logits: torch.Tensor,
    params: SamplingParams,
    seeds: Sequence[int],
    positions: Sequence[int],
) -> Array:
    """Draw one token a row [B, V], for equal requests with different seeds and positions: [B] int64 on the host."""
    metadata = equal_rows(params, len(logits), subject.device, seeds, positions)
    tokens: Array = subject.call(logits.to(subject.device), metadata).token_ids.cpu().numpy()
    return tokens


def fit_experiment(
    subject: SampleSubject,
    logits: Array | torch.Tensor,
    params: SamplingParams,
    probabilities: Array,
    bins: Array | Callable[[int], Array] | None = None,
    *,
    seeded: bool = False,
) -> Experiment:
    """Make the experiment that draws from one row [V] and fits the tokens to their probabilities.

    :param bins: of :func:`fit`, or makes them for a number of draws.
    """

    def experiment(rng: Generator, count: int) -> Verdict:
        tokens = draw_many(subject, logits, params, count, rng, seeded=seeded)
        return fit(tokens, probabilities, bins(count) if callable(bins) else bins)

    return experiment


def judge_fit(
    subject: SampleSubject,
    trial: Trial,
    label: str,
    logits: Array,
    params: SamplingParams,
    draws: int,
    *,
    seeded: bool = False,
) -> Expectation:
    """Compare the draws of a row [V] in float32 with the float64 distribution."""
    expected = expect(logits, params, subject.capabilities.tie_rule)
    assert expected.certain, f"the kit chose a row that rounding decides: {label}"

    row, probabilities = torch.from_numpy(logits), expected.probabilities

    def bins(count: int) -> Array:
        return pool_tokens(probabilities, count, expected.in_part)

    trial.judge(label, fit_experiment(subject, row, params, probabilities, bins, seeded=seeded), draws)
    return expected
