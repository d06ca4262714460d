"""The kit's expected distribution of a row: groups of ties, both tie rules, uncertain rows."""

import itertools
import math

import numpy as np
import pytest

from tokendraw import SamplingParams
from tokendraw_testing import reference
from tokendraw_testing.judges.expectation import expect
from tokendraw_testing.logits_families import FAMILIES

REQUESTS = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, filter_order=order)
    for t, k, p, m, order in itertools.product(
        (0.0, 0.5, 1.0), (0, 1, 7, 10**6), (1.0, 0.8, 0.3), (0.0, 0.2), ("top_k_first", "joint")
    )
]


@pytest.mark.parametrize("family", FAMILIES)
def test_with_ties_by_value_the_expectation_is_the_reference(family):
    rng = np.random.default_rng(4)
    judged = 0
    for params in REQUESTS:
        logits = FAMILIES[family](rng, 300)
        row, result = reference.prepare(logits, params), expect(logits, params)
        if not (row.certain and result.certain):
            continue
        judged += 1
        assert np.array_equal(result.kept, row.kept)
        assert result.count == row.kept.sum()
        processed = np.exp(reference.values(row, int(np.argmax(row.x)), "processed_logprobs"))
        np.testing.assert_allclose(result.probabilities, processed, atol=1e-12)
        assert result.log_share == pytest.approx(reference.log_kept_mass(row), abs=1e-12)
        assert result.possible[row.kept].all()
    assert judged > 0.6 * len(REQUESTS)


def brute_force(probabilities, top_k, top_p):
    """Return the kept values under ``exact_k``, by counting tokens down from the largest."""
    values = sorted(probabilities, reverse=True)
    if top_k:
        values = values[:top_k]
    total, kept, mass = sum(values), [], 0.0
    for value in values:
        if top_p < 1 and kept and mass >= top_p * total - 1e-12:
            break
        kept.append(value)
        mass += value
    return kept


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(1, 1.0), (3, 1.0), (5, 1.0), (0, 0.35), (0, 0.65), (4, 0.7), (6, 0.95)]
)
def test_exact_k_keeps_as_many_of_the_last_group_as_there_is_room_for(top_k, top_p):
    probabilities = np.array([0.05, 0.3, 0.1, 0.1, 0.3, 0.1, 0.05])
    result = expect(np.log(probabilities), SamplingParams(top_k=top_k, top_p=top_p), "exact_k")
    kept = brute_force(probabilities, top_k, top_p)
    assert result.count == len(kept)
    for value in set(probabilities):
        share = kept.count(value) * value / sum(kept)
        assert result.probabilities[probabilities == value].sum() == pytest.approx(share)
    assert result.log_share == pytest.approx(math.log(sum(kept)))


def test_a_nucleus_edge_within_rounding_is_a_doubt_and_both_answers_are_possible():
    logits = np.log([0.5, 0.3, 0.2])
    near, clear = (expect(logits, SamplingParams(top_p=p)) for p in (0.8 + 1e-9, 0.81))
    assert not near.certain
    assert near.possible.tolist() == [True, True, True]
    assert clear.certain
    assert expect(logits, SamplingParams(top_p=0.79)).possible.tolist() == [True, True, False]


def test_kept_tokens_without_any_mass_in_float64_are_kept_all_the_same():
    result = expect(np.array([0.0, -2000.0, -3000.0]), SamplingParams(top_k=2))
    assert result.kept.tolist() == [True, True, False]
    assert result.probabilities.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("logits", "probabilities"),
    [
        ([math.nan, math.nan], [1, 0]),
        ([-math.inf, -math.inf], [1, 0]),
        ([math.inf, 3.0, math.inf, math.nan], [0.5, 0, 0.5, 0]),
        ([math.nan, 1.0, -math.inf], [0, 1, 0]),
    ],
)
def test_special_rows_have_the_distribution_of_the_contract(logits, probabilities):
    assert expect(np.array(logits), SamplingParams()).probabilities.tolist() == probabilities
