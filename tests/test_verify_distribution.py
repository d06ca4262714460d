"""Speculation cannot be told from plain sampling: every token, and pairs of them, follow the target's distribution."""

import numpy as np
import pytest

from goodness_of_fit import FALSE_ALARM, chi_square
from speculation_trials import Case, faults, run
from tokendraw import SamplingParams
from tokendraw.testing import reference
from tokendraw.testing.reference_walk import distribution
from verifying import native

TRIALS = 200_000
RNG = np.random.default_rng(1)
SIXTEEN = RNG.normal(size=16)
EIGHT, NEAR_EIGHT = RNG.normal(size=8) * 1.5, RNG.normal(size=8)
FEW, FEWER = np.log([0.10, 0.60, 0.30]), np.log([0.50, 0.20, 0.30])
MARKOV = {"target": RNG.normal(size=(5, 4)) * 1.5, "draft": RNG.normal(size=(5, 4)), "drafts": 2}
CASES = {
    "opposite, K = 1": Case(target=SIXTEEN, draft=-SIXTEEN, drafts=1),
    "opposite, K = 3": Case(target=SIXTEEN, draft=-SIXTEEN, drafts=3),
    "opposite, K = 4": Case(target=SIXTEEN, draft=-SIXTEEN, drafts=4, q="probs"),
    "three tokens": Case(target=FEW, draft=FEWER, drafts=2, q="probs"),
    "three tokens, one-hot": Case(target=FEW, draft=FEWER, drafts=2, q="one-hot"),
    "one-hot": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=3, q="one-hot"),
    "one-hot, filtered": Case(
        target=EIGHT, draft=NEAR_EIGHT, q="one-hot", params=SamplingParams(top_k=4, temperature=0.8)
    ),
    "temperature": Case(target=EIGHT, draft=NEAR_EIGHT, q="probs", params=SamplingParams(temperature=1.7)),
    "top_k": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=2, params=SamplingParams(top_k=3)),
    "top_p": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=2, params=SamplingParams(top_p=0.7)),
    "min_p": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=2, params=SamplingParams(min_p=0.2)),
    "filters, of the target alone": Case(
        target=EIGHT, draft=NEAR_EIGHT, q="one-hot", params=SamplingParams(top_k=5, top_p=0.8, min_p=0.02)
    ),
    "all filters": Case(
        target=EIGHT,
        draft=NEAR_EIGHT,
        params=SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05, filter_order="joint"),
    ),
    "Markov": Case(**MARKOV),
    "Markov, further verifications": Case(**MARKOV, rest="verify"),
    "Markov, one-hot": Case(**MARKOV, q="one-hot"),
    "Markov, a placeholder first": Case(**MARKOV, placeholders=(0,)),
    "Markov, a placeholder second": Case(**MARKOV, placeholders=(1,)),
    "coupled": Case(**MARKOV, mode="coupled"),
    "without seeds": Case(**MARKOV, seeded=False),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_follow_the_target(device, case):
    """Chi-square of every token, of the first two together and of the drafts accepted in a row, and the rate at which
    the first one is: a false alarm once in 10**6 for each of these kinds."""
    found = run(CASES[case], native(device), TRIALS, device)
    assert faults(CASES[case], found) == []


def test_with_noise_of_53_bits_too(device):
    found = run(CASES["top_p"], native(device, "fp64"), TRIALS // 4, device)
    assert faults(CASES["top_p"], found) == []


def test_residuals_of_several_tiles(device):
    """Most of what the target has more of lies in tiles where the draft has next to nothing."""
    target, draft = np.full(2600, -9.0), np.full(2600, -9.0)
    target[[3, 1500, 2590]] = [0.0, 0.3, -0.5]
    draft[[3, 4, 2590]] = [1.0, 0.0, -2.0]
    case = Case(target=target, draft=draft)
    found = run(case, native(device), 4_000, device, chunk=400)
    p = distribution(reference.prepare(target, case.params))
    assert chi_square(found.tokens[:, 0], p) > FALSE_ALARM
    assert chi_square(found.tokens[:, 1], p) > FALSE_ALARM
