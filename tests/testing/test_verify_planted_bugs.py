"""The checks of test_verify_distribution see planted bugs, in a fifth of its trials."""

import numpy as np
import pytest

import planted_verify_bugs as planted
from speculation_cases import CASES
from speculation_trials import faults, run
from tokendraw import SamplingParams
from verifying import verify

TRIALS = 40_000
BUGS = {
    planted.ResidualSharesTheDraftsNoise: ("opposite, K = 1", "token 0"),
    planted.RecoveredFromTheTarget: ("three tokens", "token 0"),
    planted.AcceptanceSharesTheDraftsNoise: ("three tokens", "acceptance"),
    planted.UnfilteredTarget: ("top_k", "token 0"),
    planted.BonusFromTheRowBefore: ("Markov", "token 2"),
    planted.PlaceholdersAreSkipped: ("Markov, a placeholder first", "token 0"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
@pytest.mark.fast_first
def test_a_planted_bug_is_seen(device, bug):
    case, fault = BUGS[bug]
    assert fault in faults(CASES[case], run(CASES[case], bug(device), TRIALS, device))


@pytest.mark.parametrize("case", sorted({case for case, _ in BUGS.values()}))
@pytest.mark.fast_first
def test_the_same_trials_are_fine_without_a_bug(device, case):
    assert faults(CASES[case], run(CASES[case], planted.Honest(device), TRIALS, device)) == []


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
    assert not accepted_at(planted.Honest(device), LEAST_U, impossible, sure, device)
    assert accepted_at(planted.AcceptsAtZero(device), LEAST_U, impossible, sure, device)


def test_a_draft_as_likely_as_the_target_has_it_is_accepted_at_the_largest_u(device):
    logits = [0.3, -0.2, 0.1]
    assert accepted_at(planted.Honest(device), LARGEST_U, logits, logits, device)
    assert not accepted_at(planted.RejectsAtOne(device), LARGEST_U, logits, logits, device)
