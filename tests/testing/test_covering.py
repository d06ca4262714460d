"""Covering tables hold every allowed pair in few cases; random cases are allowed cases."""

import itertools

import numpy as np
import pytest

from tokendraw_native import plugin
from tokendraw_testing.cases import Site, covering, crossed_row, is_allowed, random_case
from tokendraw_testing.cases import rows as designed

FACTORS = {"a": range(8), "b": range(7), "c": range(5), "d": (0, 1), "e": ("x", "y", "z")}


def pairs(cases):
    return {
        ((one, case[one]), (other, case[other]))
        for case in cases
        for one, other in itertools.combinations(FACTORS, 2)
    }


def every(allowed=lambda case: True):
    cases = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
    return [case for case in cases if allowed(case)]


def test_every_pair_of_values_is_held_in_little_more_than_the_fewest_cases_that_could():
    cases = covering(FACTORS, np.random.default_rng(0))
    assert pairs(cases) == pairs(every())
    assert 56 <= len(cases) <= 66
    assert all(list(case) == list(FACTORS) for case in cases)


def test_forbidden_pairs_stay_out_and_allowed_pairs_are_held():
    def allowed(case):
        return (
            not (case.get("a", 1) == 0 and case.get("d", 0) == 1) and case.get("b", 0) + case.get("c", 0) < 9
        )

    cases = covering(FACTORS, np.random.default_rng(1), allowed)
    assert all(map(allowed, cases))
    assert pairs(cases) == pairs(every(allowed))


def test_random_cases_reach_every_pair_that_is_allowed():
    def allowed(case):
        return case.get("a", 1) != 0 or case.get("d", 1) == 1

    rng = np.random.default_rng(2)
    cases = [random_case(FACTORS, rng, allowed) for _ in range(3000)]
    assert pairs(cases) == pairs(every(allowed))


@pytest.mark.slow
def test_rounding_decides_the_filters_of_few_designed_rows():
    sites = [Site(dtype, v) for dtype in ("float32", "bfloat16", "float16") for v in (2, 33, 1025, 5003)]
    requests = designed.request_factors(plugin.tokendraw_describe().operations["sample"])
    factors = {"site": sites, "design": designed.DESIGNS, "top": designed.TOPS, **requests}
    rngs = [np.random.default_rng(seed) for seed in range(3)]
    rows = [crossed_row(case, rng, "value") for rng in rngs for case in covering(factors, rng, is_allowed)]
    assert sum(row.is_settled for row in rows) > 0.85 * len(rows)
