"""The checks of drafted tokens by their distribution, which tests of FlashInfer use, see planted bugs of verifiers."""

import numpy as np
import pytest

from mutants import by_name
from mutants.verifiers import VERIFIERS, VerifierMutant
from tokendraw import SamplingParams
from verifying import Case, faults, run

TRIALS = 40_000
MUTANTS = by_name(VERIFIERS)
RNG = np.random.default_rng(1)
SIXTEEN = RNG.normal(size=16)
EIGHT, NEAR_EIGHT = RNG.normal(size=8) * 1.5, RNG.normal(size=8)
FEW, FEWER = np.log([0.10, 0.60, 0.30]), np.log([0.50, 0.20, 0.30])
MARKOV = {"target": RNG.normal(size=(5, 4)) * 1.5, "draft": RNG.normal(size=(5, 4)), "drafts": 2}
CASES = {
    "opposite, K = 1": Case(target=SIXTEEN, draft=-SIXTEEN, drafts=1),
    "three tokens": Case(target=FEW, draft=FEWER, drafts=2, q="probs"),
    "top_k": Case(target=EIGHT, draft=NEAR_EIGHT, drafts=2, params=SamplingParams(top_k=3)),
    "Markov": Case(**MARKOV),
    "Markov, a placeholder first": Case(**MARKOV, placeholders=(0,)),
}
BUGS = {
    "a recovered token has the noise of the draft in whose place it stands": ("opposite, K = 1", "token 0"),
    "a recovered token is drawn from p": ("three tokens", "token 0"),
    "acceptance by the words that drew the draft's likeliest tokens": ("three tokens", "acceptance"),
    "p without filters": ("top_k", "token 0"),
    "bonus token from the row of the last draft": ("Markov", "token 2"),
    "placeholders skipped": ("Markov, a placeholder first", "token 0"),
}


def build(name, device):
    return MUTANTS[name].build(device=device)


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.fast_first
def test_a_planted_bug_is_seen(device, bug):
    case, fault = BUGS[bug]
    assert fault in faults(CASES[case], run(CASES[case], build(bug, device), TRIALS, device))


@pytest.mark.parametrize("case", sorted({case for case, _ in BUGS.values()}))
@pytest.mark.fast_first
def test_the_same_trials_are_fine_without_a_bug(device, case):
    assert faults(CASES[case], run(CASES[case], VerifierMutant(device=device), TRIALS, device)) == []
