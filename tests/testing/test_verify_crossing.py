"""The crossed lines of verify: random cases, and the designs of rows, drafts and seeds."""

import re

import numpy as np
import pytest

from mutants import by_name
from mutants.verifiers import VERIFIERS, VerifierMutant, verifier_mutant
from tokendraw import SamplingParams
from tokendraw_testing import Effort, reference, reference_walk
from tokendraw_testing.cases.drafts import FAMILIES, AcceptanceNoise, corner_ids, make_pair
from tokendraw_testing.kit.trial import Trial, Violation
from tokendraw_testing.statistics.draws import coincidences
from tokendraw_testing.verify import KIT, VerifySubject


def fuzzed(subject, number):
    return KIT.fuzz(VerifySubject(subject), np.random.default_rng([0, number]), Trial("fuzz", 0))


def test_a_random_case_depends_on_the_generator_alone():
    subject = verifier_mutant(VerifierMutant).subject(effort=Effort.tiny())
    first, again, other = (fuzzed(subject, number) for number in (1, 1, 2))
    assert first == again != other


@pytest.mark.slow
def test_random_cases_find_a_mistake_and_name_the_request():
    unfiltered = by_name(VERIFIERS)["p without filters"].subject(effort=Effort.tiny())
    result = []
    for number in range(32):
        try:
            fuzzed(unfiltered, number)
        except Violation as violation:
            result.append(str(violation))
    assert len(result) > 1
    for words in result:
        assert re.match(r"V = \d+ in \w+, \w+, \w+.*: .* drafts \[.* needs ", words), words


def test_a_seed_narrows_one_decision_and_keeps_all_verdicts():
    noise = AcceptanceNoise(np.random.default_rng(0), 4096)
    ratios = [1.5, 0.8, 0.6, 0.7]
    for rejected, critical in ((False, 2), (True, 3), (True, 0)):
        seed = noise.narrow(2**32 - 2, ratios, rejected, critical)
        words = reference.random_words(seed, np.arange(4) + 2**32 - 2, 0, reference_walk.ACCEPT)
        u = reference.uniform(words[0])
        assert (u < ratios).tolist() == [True, True, True, not rejected]
        assert critical == 0 or abs(u[critical] - ratios[critical]) < 0.01
    assert noise.narrow(0, [0.0, 0.5], rejected=True, critical=1) is None


@pytest.mark.parametrize("size", [2, 33, 1025, 5003, 65_543])
def test_rows_have_mass_on_the_last_id_and_drafts_of_their_own(size):
    rng = np.random.default_rng(0)
    for family in FAMILIES:
        y, draft = make_pair(rng, family, size, SamplingParams(min_p=0.05))
        assert y.shape == draft.shape == (size,)
        assert np.isfinite(y).all()
        assert np.isfinite(draft).all()
        assert family == "levels" or size < 33 or (y != draft).any()
    for count in (1, 4, 14):
        ids = corner_ids(rng, size, min(size, count))
        assert size - 1 in ids
        assert len(set(ids.tolist())) == len(ids) == min(size, count)


def test_coincidences_show_noise_shared_at_a_single_distance():
    rng = np.random.default_rng(0)
    fine = [coincidences(rng.integers(0, 500, 400), 1 / 500, "values", 100).p_value for _ in range(200)]
    assert min(fine) > 1e-4
    values = rng.integers(0, 500, 400)
    values[300:320] = values[7:27]
    verdict = coincidences(values, 1 / 500, "values", 100)
    assert verdict.p_value < 1e-20
    assert verdict.worst == "93 rows and 2 calls apart: the same values 20 times, expected 0.21"
