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
    order = np.argsort(-probabilities, kind="stable")
    expected = probabilities[order] * draws
    bins = np.full(len(probabilities), -1)
    bin_number, bin_count = 0, 0.0
    least = min(LEAST_EXPECTED, draws / 5)
    for token, mass in zip(order, expected, strict=True):
        if mass <= 0:
            break
        bins[token] = bin_number
        bin_count += mass
        if bin_count >= least:
            bin_number, bin_count = bin_number + 1, 0.0
    if bin_count and bin_number:  # what is left over joins the last full bin
        bins[bins == bin_number] = bin_number - 1
    return bins


def fit(tokens: Array, probabilities: Array, bins: Array | None = None) -> Verdict:
    """Test tokens as draws from ``probabilities`` [V]: a G-test over the bins, and an exact binomial for each of them.

    Where a bin expects fewer than 100 draws, there is no G-test.

    :param bins: [V] the bin of each token, from 0 without a gap, -1 for tokens that must not be drawn; None:
        :func:`pool_tokens`.
    :returns: twice the smaller of the two p-values; that of the binomials is the least, times their number.
    """
    draws = len(tokens)
    probabilities = probabilities / probabilities.sum()
    bins = pool_tokens(probabilities, draws) if bins is None else bins
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


def worst_distance(values: Array, equal_share: float) -> tuple[float, int, int]:
    """Test at every distance how many values so far apart are equal: (p-value, worst distance, number of pairs).

    Whether values i and i + d are equal is independent for all i, given d, even though most values stand in two of the
    pairs: the pairs of one distance make no circle. So the number of equal pairs is binomial for each distance, exactly
    if all values are equally likely.

    :param values: [n] int64, not negative.
    :param equal_share: probability that two values are equal.
    """
    n, order = len(values), np.argsort(values, kind="stable")
    ordered, pairs = values[order], np.zeros(len(values), np.int64)
    for step in range(1, int(np.bincount(values).max())):
        is_equal = ordered[step:] == ordered[:-step]
        pairs += np.bincount((order[step:] - order[:-step])[is_equal], minlength=n)
    tails = stats.binom.sf(pairs[1:] - 1, n - np.arange(1, n), equal_share)
    worst = int(tails.argmin()) + 1
    return min(1.0, float(tails[worst - 1]) * (n - 1)), worst, int(pairs[worst])


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
