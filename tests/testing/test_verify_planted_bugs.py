"""The checks of test_verify_distribution see planted bugs, in a fifth of its trials."""

import numpy as np
import pytest

from mutants import by_name
from mutants.verifiers import VERIFIERS, VerifierMutant
from tokendraw import SamplingParams
from verifying import CASES, faults, run, verify

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


LEAST_U, LARGEST_U = 228_227_993, 12_713_842_529
"""Seeds whose word of the stream ACCEPT at position 9 is all zeros, and all ones."""


def accepted_at(sampler, seed, target, draft, device):
    """Whether the draft 1 is accepted at position 9."""
    output = verify(
        sampler,
        np.float32([target, target]),
        [[1]],
        SamplingParams(seed=seed),
        first=[9],
        device=device,
        draft_logits=np.float32([draft]),
    )
    return bool(output.num_accepted[0])


def test_a_draft_of_probability_0_is_rejected_at_the_least_u(device):
    impossible, sure = [0.0, -np.inf, 1.0], [0.0, 9.0, -9.0]
    assert not accepted_at(VerifierMutant(device=device), LEAST_U, impossible, sure, device)
    assert accepted_at(
        build("u in [0, 1), accepted if u <= p / q", device), LEAST_U, impossible, sure, device
    )


def test_a_draft_as_likely_as_the_target_has_it_is_accepted_at_the_largest_u(device):
    logits = [0.3, -0.2, 0.1]
    assert accepted_at(VerifierMutant(device=device), LARGEST_U, logits, logits, device)
    assert not accepted_at(
        build("u rounded to float32, which reaches 1", device), LARGEST_U, logits, logits, device
    )
