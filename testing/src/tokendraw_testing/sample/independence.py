"""Looks for noise used twice, a bug invisible to tests of single tokens."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tokendraw import SamplingParams
from tokendraw.tools import all_of
from tokendraw_testing.kit.property import Properties
from tokendraw_testing.kit.statistical_tests import independence
from tokendraw_testing.kit.trial import Trial, Verdict, Violation
from tokendraw_testing.rows.draws import seed_torch
from tokendraw_testing.rows.subjects import SampleSubject

properties = Properties("sample")
Array = NDArray[Any]

_VOCAB_SIZE: Final = 8
_UNIFORM_PROBABILITIES = np.full(_VOCAB_SIZE, 1 / _VOCAB_SIZE)
_LAGS = (1 << 16, 1 << 15, 4096, 1024, 256, 128, 64, 32, 16, 4, 3, 2, 1)
"""Distances between rows, the largest first: noise that repeats with a period bends the statistics of all others."""


@properties.required("rows of a batch")
def rows_of_a_batch(subject: SampleSubject, trial: Trial) -> str:
    """Equal rows of one batch draw independently, near each other and 2**15 and 2**16 rows apart."""
    rows = subject.effort.batch_rows
    lags = [lag for lag in _LAGS if lag < rows]
    tokens_by_count: dict[int, list[Array]] = {}

    def experiment(rng: Generator, batches: int, lag: int) -> Verdict:
        if batches not in tokens_by_count:
            seed_torch(rng)
            logits = torch.zeros(rows, _VOCAB_SIZE)
            tokens_by_count[batches] = [subject.tokens(logits, SamplingParams()) for _ in range(batches)]
        left, right = _pairs_at_lag(rows, lag)
        pairs = [(tokens[left], tokens[right]) for tokens in tokens_by_count[batches]]
        return independence(
            np.concatenate([a for a, _ in pairs]),
            np.concatenate([b for _, b in pairs]),
            _UNIFORM_PROBABILITIES,
            f"rows {lag} apart",
        )

    wrong: dict[int, Violation] = {}
    for lag in lags:
        try:
            trial.judge(f"lag {lag}", lambda rng, count, lag=lag: experiment(rng, count, lag), 1)  # type: ignore[misc]
        except Violation as violation:
            wrong[lag] = violation
    if len(wrong) == len(lags):
        raise Violation(f"at all distances, from 1 on: {wrong[1]}")
    if wrong:
        raise next(iter(wrong.values()))
    return f"{rows} rows, {len(lags)} distances"


def _pairs_at_lag(rows: int, lag: int) -> tuple[Array, Array]:
    """Return pairs of rows ``lag`` apart; no row is in two of them."""
    left = np.arange(rows - lag)
    left = left[(left // lag) % 2 == 0]
    return left, left + lag


@properties.required("successive calls")
def calls(subject: SampleSubject, trial: Trial) -> str:
    """A row draws independently in each of several calls, in batches of one and of many."""
    kinds = [
        (rows, size)
        for rows, size in ((1, 2), (64, _VOCAB_SIZE), (4096, _VOCAB_SIZE))
        if rows <= subject.effort.batch_rows
    ]
    for rows, size in kinds:

        def experiment(rng: Generator, draws: int, rows: int = rows, size: int = size) -> Verdict:
            seed_torch(rng)
            logits = torch.zeros(rows, size)
            pairs = -(-draws // rows)
            tokens = np.stack([subject.tokens(logits, SamplingParams()) for _ in range(2 * pairs)])
            probabilities = np.full(size, 1 / size)
            return independence(tokens[::2].ravel(), tokens[1::2].ravel(), probabilities, "successive draws")

        trial.judge(f"batches of {rows}", experiment, subject.effort.draws_of(600 if rows == 1 else 8192))
    return f"batches of {all_of(str(rows) for rows, _ in kinds)}"
