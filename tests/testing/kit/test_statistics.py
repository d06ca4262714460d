"""The statistics of the kit accept correct draws and reject wrong draws. All seeds are fixed."""

import numpy as np
import pytest
import torch
from scipy import stats

from tokendraw_testing.kit.statistical_tests import fit, independence, pool_tokens, share, two_sided
from tokendraw_testing.statistics.draws import coincidences
from tokendraw_testing.statistics.verify import bins_of_residuals

RNG = np.random.default_rng(1)
PROBABILITIES = RNG.dirichlet(np.full(60, 0.4))


def test_every_bin_expects_a_hundred_draws_and_holds_falling_probabilities():
    bins = pool_tokens(PROBABILITIES, 20_000)
    expected = np.bincount(bins, PROBABILITIES * 20_000)
    assert expected.min() >= 100
    assert len(expected) > 10
    order = np.argsort(-PROBABILITIES)
    assert (np.diff(bins[order]) >= 0).all()


def test_impossible_tokens_are_in_no_bin_and_give_p_0_when_drawn():
    probabilities = np.array([0.5, 0.0, 0.5])
    assert pool_tokens(probabilities, 1000).tolist() == [0, -1, 1]
    verdict = fit(np.array([0, 2, 1, 2]), probabilities)
    assert (verdict.p_value, verdict.worst) == (0.0, "token 1 was drawn and has no mass")


def test_few_draws_are_pooled_into_fifths_that_exact_binomials_judge():
    assert pool_tokens(np.full(10, 0.1), 50).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    all_equal = fit(np.zeros(20, int), np.full(10, 0.1))
    assert all_equal.p_value == pytest.approx(2 * 5 * two_sided(20, 20, 0.2))


def test_few_pairs_are_counted_as_equal_or_not():
    tokens = RNG.integers(0, 8, 24)
    even = np.full(8, 1 / 8)
    assert independence(tokens, tokens, even, "pairs").p_value == pytest.approx(4 * two_sided(24, 24, 1 / 8))


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ["fit", "fit of few", "share", "independence", "independence of few"])
def test_p_values_of_correct_draws_are_small_with_the_stated_frequency(statistic):
    """Of 2,000 p-values at most 3 % lie below 0.02 and 0.5 % below 0.001; more than that once in 1e3."""
    rng = np.random.default_rng(2)
    even = np.full(4, 0.25)
    result = []
    for _ in range(2000):
        if statistic == "fit":
            verdict = fit(rng.choice(60, 5000, p=PROBABILITIES), PROBABILITIES)
        elif statistic == "fit of few":
            verdict = fit(rng.choice(60, 24, p=PROBABILITIES), PROBABILITIES)
        elif statistic == "independence of few":
            verdict = independence(rng.integers(0, 4, 24), rng.integers(0, 4, 24), even, "pairs")
        elif statistic == "share":
            verdict = share(int(rng.binomial(5000, 0.03)), 5000, 0.03, "tail")
        else:
            verdict = independence(rng.integers(0, 4, 2000), rng.integers(0, 4, 2000), even, "pairs")
        result.append(verdict.p_value)
    result = np.array(result)
    assert (result < 0.02).mean() <= 0.03
    assert (result < 0.001).mean() <= 0.005


@pytest.mark.parametrize(
    ("shift", "seen"), [(0.0, False), (0.01, True)], ids=["the distribution", "one per cent moved"]
)
def test_one_per_cent_of_the_mass_moved_from_the_tail_is_seen(shift, seen):
    rng = np.random.default_rng(3)
    order = np.argsort(PROBABILITIES)
    light = np.cumsum(PROBABILITIES[order]) <= 0.0101
    moved = PROBABILITIES.copy()
    if shift:
        moved[order[light]] = 0
        moved /= moved.sum()
    verdict = fit(rng.choice(60, 20_000, p=moved), PROBABILITIES)
    assert (verdict.p_value < 1e-6) == seen


def test_equal_pairs_are_seen_even_with_a_single_token_in_every_margin():
    even = np.full(8, 1 / 8)
    assert independence(np.full(5000, 3), np.full(5000, 3), even, "pairs").p_value == 0.0
    assert independence(RNG.integers(0, 8, 6500), RNG.integers(0, 8, 6500), even, "pairs").p_value > 1e-3
    same = RNG.integers(0, 8, 6500)
    verdict = independence(same, same, even, "rows 3 apart")
    assert verdict.p_value < 1e-300
    assert verdict.worst == "rows 3 apart equal in 1.000 of 6500, expected 0.125"


@pytest.mark.parametrize("hits", [0, 3, 40, 50, 61, 100])
def test_the_binomial_is_exact_and_never_smaller_than_that_of_scipy(hits):
    doubled = 2 * min(stats.binom.cdf(hits, 100, 0.5), stats.binom.sf(hits - 1, 100, 0.5))
    assert two_sided(hits, 100, 0.5) == pytest.approx(min(1.0, doubled))
    assert two_sided(hits, 100, 0.5) >= stats.binomtest(hits, 100, 0.5).pvalue * (1 - 1e-9)


def test_bins_of_residuals_have_no_gap_where_the_residual_has_not_every_kind_of_rounding():
    p, q = torch.tensor([[0.3002, 0.2, 0.4998], [0.3001, 0.3, 0.3999]], dtype=torch.float64)
    assert bins_of_residuals(p, q).tolist() == [1, -1, 0]
    p, q = p[:2], q[:2]  # the token that would be in bin 0 is not of the residual
    assert bins_of_residuals(p, q).tolist() == [0, -1]
    assert fit(np.array([0, 0]), (p - q).clamp(min=0).numpy(), bins_of_residuals(p, q)).p_value == 1.0


class TestCoincidences:
    SIZE, ROWS = 20_011, 1100

    def tokens(self, seed):
        return np.random.default_rng(seed).integers(0, self.SIZE, self.ROWS)

    @pytest.mark.slow
    def test_independent_rows_are_seldom_suspicious(self):
        p_values = [coincidences(self.tokens(seed), 1 / self.SIZE, "tokens").p_value for seed in range(200)]
        assert sum(p < 0.01 for p in p_values) < 10
        assert min(p_values) > 1e-5

    @pytest.mark.parametrize("distance", [1, 3, 64, 300, 1000])
    def test_noise_shared_at_any_distance_is_seen(self, distance):
        tokens = self.tokens(0)
        verdict = coincidences(
            tokens[np.arange(self.ROWS) % distance] if distance > 1 else tokens // 2 * 0,
            1 / self.SIZE,
            "tokens",
        )
        assert verdict.p_value < 1e-12

    def test_ten_rows_with_shared_noise_are_seen_and_the_distance_is_named(self):
        tokens = self.tokens(0)
        tokens[1000:1010] = tokens[:10]
        verdict = coincidences(tokens, 1 / self.SIZE, "tokens")
        assert verdict.p_value < 1e-12
        assert verdict.worst == "1000 rows apart: the same tokens 10 times, expected 0.00"
