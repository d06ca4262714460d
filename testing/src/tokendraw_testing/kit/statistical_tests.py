"""Tests drawn tokens against a distribution that is known in full. Every test gives a p-value.

The bins are pooled so that each expects at least :data:`LEAST_EXPECTED` draws: there the chi-square approximation of
the G-test holds far into its tail, and an exact binomial sees a shift of a third. Too few draws for five such bins are
pooled into fifths, and judged by exact binomials alone: they see less, and are called wrong no more often.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tokendraw_testing.kit.trial import Verdict

LEAST_EXPECTED: Final = 100.0

Array = NDArray[Any]


def pooled(probabilities: Array, draws: int, together: Array | None = None) -> Array:
    """Put every token into a bin of falling probability, each with 100 expected draws or more, or a fifth of all.

    Tokens of probability 0 are in bin -1.

    :param together: [V] bool: tokens whose probability is known as a whole alone; they share a bin.
    """
    if together is not None and together.any():
        first, alone = int(together.argmax()), np.where(together, 0.0, probabilities)
        alone[first] = probabilities[together].sum()
        bins = pooled(alone, draws)
        bins[together] = bins[first]
        return bins
    order = np.argsort(-probabilities, kind="stable")
    expected = probabilities[order] * draws
    bins = np.full(len(probabilities), -1)
    current, filled = 0, 0.0
    least = min(LEAST_EXPECTED, draws / 5)
    for token, mass in zip(order, expected, strict=True):
        if mass <= 0:
            break
        bins[token] = current
        filled += mass
        if filled >= least:
            current, filled = current + 1, 0.0
    if filled and current:  # what is left over joins the last full bin
        bins[bins == current] = current - 1
    return bins


def fit(tokens: Array, probabilities: Array, bins: Array | None = None) -> Verdict:
    """Test tokens as draws from ``probabilities`` [V]: a G-test over the bins, and an exact binomial for each of them.

    Where a bin expects fewer than 100 draws, there is no G-test.

    :param bins: [V] the bin of each token, from 0 without a gap, -1 for what must not be drawn; None: :func:`pooled`.
    :returns: twice the smaller of the two p-values; that of the binomials is the least, times their number.
    """
    draws = len(tokens)
    probabilities = probabilities / probabilities.sum()
    bins = pooled(probabilities, draws) if bins is None else bins
    found = bins[tokens]
    if (found < 0).any():
        return Verdict(0.0, f"token {int(tokens[found < 0][0])} was drawn and has no mass", draws)
    inside = bins >= 0
    share = np.bincount(bins[inside], probabilities[inside])
    counts = np.bincount(found, minlength=len(share))
    tails = two_sided(counts, draws, share)
    worst = int(tails.argmin())
    exact = min(1.0, float(tails[worst]) * len(tails))
    shape = g_test(counts, share * draws) if round(share.min() * draws) >= LEAST_EXPECTED else 1.0
    members = np.flatnonzero(bins == worst)
    name = f"token {members[0]}" if len(members) == 1 else f"{len(members)} tokens such as {members[0]}"
    return Verdict(
        min(1.0, 2 * min(exact, shape)),
        f"{name} drawn {counts[worst]} times, expected {share[worst] * draws:.1f}",
        draws,
    )


def share(hits: int, draws: int, probability: float, what: str) -> Verdict:
    """Test an event of known probability by the exact binomial."""
    text = f"{what} drawn {hits} times, expected {draws * probability:.1f}"
    return Verdict(float(two_sided(hits, draws, probability)), text, draws)


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
    equal = float((left == right).mean())
    expected = float((probabilities**2).sum())
    return Verdict(
        pairs.p_value, f"{what} equal in {equal:.3f} of {len(left)}, expected {expected:.3f}", len(left)
    )


def g_test(counts: Array, expected: Array) -> float:
    """Return the p-value of the log-likelihood ratio statistic of a table whose expected counts are known."""
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
