"""The checks of tests/operations/verify/test_distribution.py see planted bugs, in a fifth of the trials."""

import pytest

from mutants import by_name
from mutants.verifiers import VERIFIERS, VerifierMutant
from verifying import CASES, faults, run

TRIALS = 40_000
MUTANTS = by_name(VERIFIERS)
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
