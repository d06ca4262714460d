"""Speculation cannot be told from plain sampling: every token, and pairs of them, follow the target's distribution."""

import numpy as np
import pytest

from goodness_of_fit import FALSE_ALARM, chi_square
from tokendraw_testing import reference
from tokendraw_testing.reference_walk import distribution
from verifying import CASES, Case, faults, native, run

TRIALS = 200_000


@pytest.mark.fast_first
@pytest.mark.parametrize("case", CASES)
def test_tokens_follow_the_target(device, case):
    """Chi-square of every token, of the first two together, of the accepted drafts in a row, and of the first
    acceptance: a false alarm once in 10**6 for each.
    """
    found = run(CASES[case], native(device), TRIALS, device)
    assert faults(CASES[case], found) == []


@pytest.mark.slow
def test_with_noise_of_53_bits_too(device):
    found = run(CASES["top_p"], native(device, "fp64"), TRIALS // 4, device)
    assert faults(CASES["top_p"], found) == []


@pytest.mark.slow
def test_residuals_of_several_tiles(device):
    """Most of the residual lies in tiles with next to no draft mass."""
    target, draft = np.full(2600, -9.0), np.full(2600, -9.0)
    target[[3, 1500, 2590]] = [0.0, 0.3, -0.5]
    draft[[3, 4, 2590]] = [1.0, 0.0, -2.0]
    case = Case(target=target, draft=draft)
    found = run(case, native(device), 4_000, device, chunk=400)
    p = distribution(reference.prepare(target, case.params))
    assert chi_square(found.tokens[:, 0], p) > FALSE_ALARM
    assert chi_square(found.tokens[:, 1], p) > FALSE_ALARM
