"""Makes many draws from one row of logits, in as few calls as fit the device, and counts coincidences among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.random import Generator
from scipy import stats

from tokendraw import SamplingParams
from tokendraw_testing.cases.requests import random_seeds, seed_torch
from tokendraw_testing.kit.statistical_tests import fit, worst_distance
from tokendraw_testing.kit.trial import Experiment, Verdict
from tokendraw_testing.reference import Array
from tokendraw_testing.subjects import SampleSubject, equal_rows

_POISONED: Final = 8
"""Of so many rows of a narrow vocabulary one has a NaN, and no bearing on the others."""


def draw_many(
    subject: SampleSubject,
    logits: Array | torch.Tensor,
    params: SamplingParams,
    draws: int,
    rng: Generator,
    *,
    seeded: bool = False,
) -> Array:
    """Draw ``draws`` tokens or a few more from one row [V] in any dtype: rows of a batch differ only in their noise."""
    rows = max(1, min(draws, subject.effort.elements // len(logits), 1 << 16))
    row = torch.as_tensor(logits).to(subject.device)
    is_wide = len(logits) > 1 << 14
    batch = row.expand(rows, -1) if is_wide else row.repeat(rows, 1)
    is_clean = np.ones(rows, bool)
    if not is_wide and rows > _POISONED:
        is_clean[::_POISONED] = False
        batch[::_POISONED, 0] = torch.nan
    seed_torch(rng)
    parts = []
    left = draws
    while left > 0:
        count = min(rows, left + -(-left // (_POISONED - 1)))
        seeds, positions = random_seeds(rng, count) if seeded else (None, None)
        metadata = equal_rows(params, count, subject.device, seeds, positions)
        tokens = subject.call(batch[:count], metadata).token_ids.cpu().numpy()
        parts.append(tokens[is_clean[:count]])
        left -= len(parts[-1])
    return np.concatenate(parts)


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


def coincidences(values: Array, equal_share: float, what: str, group: int | None = None) -> Verdict:
    """Test draws of one distribution for noise shared by two of them, at every distance.

    Equally likely values make the numbers of equal pairs exactly binomial: see :func:`worst_distance`.

    :param values: [n] int64.
    :param equal_share: probability that two of them are equal.
    :param group: draws of a call, where there are several, for the message.
    """
    p_value, distance, count = worst_distance(values, equal_share)
    calls, rows = divmod(distance, group or len(values))
    where = f"{rows} rows" + f" and {calls} calls" * bool(calls)
    expected = (len(values) - distance) * equal_share
    return Verdict(
        p_value, f"{where} apart: the same {what} {count} times, expected {expected:.2f}", len(values)
    )


def worst_of(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict of several looks at the same draws: the least p-value, times their number."""
    worst = min(verdicts, key=lambda verdict: verdict.p_value)
    return Verdict(min(1.0, worst.p_value * len(verdicts)), worst.worst, worst.draws)


def spread(values: Array, probabilities: Array) -> Verdict:
    """Test how unevenly values are spread, or how few of them differ.

    :param probabilities: of the values; nearly uniform, so that coincidences at one distance are independent.
    """
    n, size = len(values), len(probabilities)
    if n < 2 * size:
        num_repeated = n - len(np.unique(values))
        expected = n - size * (1 - (1 - 1 / size) ** n)
        p_value = float(stats.poisson.sf(num_repeated - 1, expected))
        return Verdict(p_value, f"{num_repeated} of {n} values again, expected {expected:.1f}", n)
    counts, needed = np.bincount(values, minlength=size), n * probabilities
    p_value = float(stats.chi2.sf(((counts - needed) ** 2 / needed).sum(), size - 1))
    worst = int((np.abs(counts - needed) / needed).argmax())
    return Verdict(p_value, f"value {worst} {counts[worst]} times, expected {needed[worst]:.1f}", n)
