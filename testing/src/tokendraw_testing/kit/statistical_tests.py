"""Tests drawn tokens against a fully known distribution. Every test gives a p-value.

The bins are pooled so that each expects at least :data:`LEAST_EXPECTED` draws: there the chi-square approximation of
the G-test holds far into its tail, and an exact binomial sees a shift of a third. Too few draws for five such bins are
pooled into fifths, and judged by exact binomials alone: they see less, and are called wrong no more often.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from scipy import stats

from tokendraw_testing.kit.trial import Verdict
from tokendraw_testing.reference import Array

LEAST_EXPECTED: Final = 100.0


def pool_tokens(probabilities: Array, draws: int, group: Array | None = None) -> Array:
    """Put every token into a bin of falling probability, each with 100 expected draws or more, or a fifth of all.

    Tokens of probability 0 are in bin -1.

    :param group: [V] bool: tokens whose probability is known as a whole alone; they share a bin.
    """
    if group is not None and group.any():
        first, merged_probabilities = int(group.argmax()), np.where(group, 0.0, probabilities)
        merged_probabilities[first] = probabilities[group].sum()
        bins = pool_tokens(merged_probabilities, draws)
        bins[group] = bins[first]
        return bins
    bins, order = np.full(len(probabilities), -1), np.argsort(-probabilities, kind="stable")
    order = order[probabilities[order] > 0]
    reached = np.append(0.0, (probabilities[order] * draws).cumsum())
    least, ends = min(LEAST_EXPECTED, draws / 5), [0]
    while ends[-1] < len(order):
        ends.append(int(reached.searchsorted(reached[ends[-1]] + least)))
    if ends[-1] > len(order) and len(ends) > 2:  # what is left over joins the last full bin
        ends.pop()
    ends[-1] = len(order)
    bins[order] = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    return bins


def fit(
    tokens: Array, probabilities: Array, bins: Array | None = None, group: Array | None = None
) -> Verdict:
    """Test tokens as draws from ``probabilities`` [V]: a G-test over the bins, and an exact binomial for each of them.

    Where a bin expects fewer than 100 draws, there is no G-test.

    :param bins: [V] the bin of each token, from 0 without a gap, -1 for tokens that must not be drawn; None:
        those of :func:`pool_tokens`, with ``group``.
    :returns: twice the smaller of the two p-values; that of the binomials is the least, times their number.
    """
    draws = len(tokens)
    probabilities = probabilities / probabilities.sum()
    bins = pool_tokens(probabilities, draws, group) if bins is None else bins
    drawn_bins = bins[tokens]
    if (drawn_bins < 0).any():
        return Verdict(0.0, f"token {int(tokens[drawn_bins < 0][0])} was drawn and has no mass", draws)
    has_bin = bins >= 0
    share = np.bincount(bins[has_bin], probabilities[has_bin])
    counts = np.bincount(drawn_bins, minlength=len(share))
    tails = two_sided(counts, draws, share)
    worst = int(tails.argmin())
    binomial_p = min(1.0, float(tails[worst]) * len(tails))
    g_test_p = g_test(counts, share * draws) if round(share.min() * draws) >= LEAST_EXPECTED else 1.0
    first, *others = np.flatnonzero(bins == worst)
    name = f"{len(others) + 1} tokens such as {first}" if others else f"token {first}"
    text = f"{name} drawn {counts[worst]} times, expected {share[worst] * draws:.1f}"
    return Verdict(min(1.0, 2 * min(binomial_p, g_test_p)), text, draws)


def independence(left: Array, right: Array, probabilities: Array, what: str) -> Verdict:
    """Test pairs of tokens as independent draws from ``probabilities`` [V], small: a G-test of all V x V pairs.

    The expected table is known in full, so that pairs which are always equal show, whatever their margins. Too few
    pairs for that are counted as equal or not. No token may stand in two pairs.
    """
    size = len(probabilities)
    table = np.outer(probabilities, probabilities)
    is_small = round(table.min() * len(left)) < LEAST_EXPECTED
    bins = 1 - np.eye(size, dtype=int).ravel() if is_small else None
    pairs = fit(left * size + right, table.ravel(), bins)
    equal, expected = float((left == right).mean()), float((probabilities**2).sum())
    text = f"{what} equal in {equal:.3f} of {len(left)}, expected {expected:.3f}"
    return Verdict(pairs.p_value, text, len(left))


def coincidences(values: Array, equal_share: float, what: str, group: int | None = None) -> Verdict:
    """Test draws of one distribution for noise shared by two of them, at every distance.

    Whether values i and i + d are equal is independent for all i, given d, even though most values stand in two of the
    pairs: the pairs of one distance make no circle. So the number of equal pairs is binomial for each distance, exactly
    if all values are equally likely.

    :param values: [n] int64, not negative.
    :param equal_share: probability that two of them are equal.
    :param group: draws of a call, where there are several, for the message.
    """
    n, order = len(values), np.argsort(values, kind="stable")
    ordered, pairs = values[order], np.zeros(len(values), np.int64)
    for step in range(1, int(np.bincount(values).max())):
        is_equal = ordered[step:] == ordered[:-step]
        pairs += np.bincount((order[step:] - order[:-step])[is_equal], minlength=n)
    tails = stats.binom.sf(pairs[1:] - 1, n - np.arange(1, n), equal_share)
    worst = int(tails.argmin()) + 1
    calls, rows = divmod(worst, group or n)
    where, expected = f"{rows} rows" + f" and {calls} calls" * bool(calls), (n - worst) * equal_share
    text = f"{where} apart: the same {what} {pairs[worst]} times, expected {expected:.2f}"
    return Verdict(min(1.0, float(tails[worst - 1]) * (n - 1)), text, n)


def worst_of(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict of several looks at the same draws: the least p-value, times their number."""
    worst = min(verdicts, key=lambda verdict: verdict.p_value)
    return Verdict(min(1.0, worst.p_value * len(verdicts)), worst.worst, worst.draws)


def spread(values: Array, size: int) -> Verdict:
    """Test how unevenly equally likely values below ``size`` are spread; of few of them, how many come again."""
    n = len(values)
    if n >= 2 * size:
        return fit(values, np.full(size, 1 / size))
    num_repeated, expected = n - len(np.unique(values)), n - size * (1 - (1 - 1 / size) ** n)
    p_value = float(stats.poisson.sf(num_repeated - 1, expected))
    return Verdict(p_value, f"{num_repeated} of {n} values again, expected {expected:.1f}", n)


def g_test(counts: Array, expected: Array) -> float:
    """Return the p-value of the log-likelihood ratio of counts against known expected counts."""
    if len(counts) < 2:
        return 1.0
    scaled = expected * (counts.sum() / expected.sum())
    return float(stats.power_divergence(counts, scaled, lambda_="log-likelihood").pvalue)


def two_sided(hits: Any, draws: int, probability: Any) -> Any:
    """Return exact binomial p-values: twice the smaller tail. Hits and probabilities are numbers or arrays."""
    probability = np.minimum(1.0, probability)
    lower = stats.binom.cdf(hits, draws, probability)
    upper = stats.binom.sf(hits - 1, draws, probability)
    return np.minimum(1.0, 2 * np.minimum(lower, upper))
