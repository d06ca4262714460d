"""Statistical checks of drawn tokens. Every one gives a p-value, to be compared with ``FALSE_ALARM``.

The draws of the suite are seeded, so a check that passes once passes always. ``FALSE_ALARM`` is the probability that a
correct sampler with other random numbers (another generator of torch, another seed in the test) is called wrong.
"""

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-7


def chi_square(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of ``tokens`` as draws from ``probabilities``; cells that expect fewer than five are pooled.

    A drawn token of probability 0 gives 0.
    """
    counts = np.bincount(tokens, minlength=len(probabilities))
    if (counts[probabilities == 0] > 0).any():
        return 0.0
    expected = len(tokens) * probabilities / probabilities.sum()
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    return float(stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue)


def independence(left: np.ndarray, right: np.ndarray) -> float:
    """p-value of ``left[i]`` and ``right[i]`` as independent draws, from their contingency table."""
    table = np.zeros((left.max() + 1, right.max() + 1))
    np.add.at(table, (left, right), 1)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    return float(stats.chi2_contingency(table).pvalue)


def binomial_interval(draws: int, probability: float, false_alarm: float = 1e-9) -> tuple[int, int]:
    """Counts outside of which a binomial falls with at most ``false_alarm``."""
    low, high = stats.binom.ppf([false_alarm / 2, 1 - false_alarm / 2], draws, probability)
    return int(low), int(high)
