"""The crossed lines of verify on verifiers that go wrong in one corner alone, and the designs that show it."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import tokendraw_native.verify as pieces
from mutants.verifiers import OPERATIONS, VerifierMutant
from tokendraw import BatchFacts, SamplingParams, speculative
from tokendraw_testing import Effort, Subject, reference, reference_walk, run
from tokendraw_testing.kit.report import Status
from tokendraw_testing.kit.trial import Trial, Violation
from tokendraw_testing.verify import KIT, Verifying
from tokendraw_testing.verify.crossing.noise import AcceptanceNoise
from tokendraw_testing.verify.crossing.rows import FAMILIES, pair, places
from tokendraw_testing.verify.unseeded import coincidences

FEW = replace(Effort.tiny(), most_draws=200)


class Corner(VerifierMutant):
    """Goes wrong in one dtype of the target's logits, or with a vocabulary above a size."""

    dtype, above, least_drafts = None, 0, 0

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        inside = (
            self.dtype in (None, target_logits.dtype)
            and target_logits.shape[1] > self.above
            and drafts.max_drafts >= self.least_drafts
        )
        verifier = super() if inside else self.sampler
        return verifier.verify(target_logits, drafts, metadata, mode=mode)


class RoundedQ(Corner):
    dtype = torch.bfloat16

    @property
    def exchanged(self):
        def rounded(*given):
            found, rows = native(*given)
            return Rounded(found), rows

        native = pieces._draft_distribution
        return {"_draft_distribution": rounded}


class Rounded:
    def __init__(self, exact):
        self.exact, self.valid = exact, exact.valid

    def probs_at(self, rows, ids):
        return self.exact.probs_at(rows, ids).bfloat16().double()

    def probs(self, rows):
        return self.exact.probs(rows).bfloat16().double()


class LongBonus(Corner):
    least_drafts = 8

    def change(self, target_logits, drafts, metadata):
        rows = torch.arange(len(target_logits))
        long = drafts.cu_num_logits.diff() > 8
        rows[speculative.bonus_rows(drafts.cu_num_logits)[long]] -= 1
        return target_logits[rows], drafts, metadata


class NarrowResidual(Corner):
    above = 1 << 16

    @property
    def exchanged(self):
        def residual(p, q):
            more = (p - q).clamp(min=0)
            more[:, 1 << 16 :] = 0
            return torch.where(more.amax(-1, keepdim=True) > 0, more, p)

        return {"residual": residual}


class RowsOfARequestShareASeed(Corner):
    dtype = torch.float16

    def change(self, target_logits, drafts, metadata):
        if metadata.facts.any_seeded:
            return target_logits, drafts, metadata
        request = speculative.row_index(drafts.cu_num_logits, len(target_logits))
        seed = torch.empty(drafts.num_requests, dtype=torch.int64).random_(-(2**63), None)[request]
        return target_logits, drafts, seeded(metadata, seed)


class DraftsShareNoise(VerifierMutant):
    """Drafts of one call 16 rows apart share noise, in float16 and without seeds alone."""

    def __init__(self, need=None, device="cpu"):
        super().__init__(need, device)
        self.sample = self._sample

    def _sample(self, logits, metadata, *, draft=False):
        if draft and logits.dtype == torch.float16 and not metadata.facts.any_seeded:
            fresh = torch.empty(16, dtype=torch.int64).random_(-(2**63), None)
            metadata = seeded(metadata, fresh[torch.arange(len(logits)) % 16])
        return self.sampler.sample(logits, metadata, draft=draft)


def seeded(metadata, seed):
    columns = {name: metadata.per_row(name) for name in ("temperature", "top_k", "top_p", "min_p", "joint")}
    facts = replace(metadata.facts, any_seeded=True, all_seeded=True)
    return replace(
        metadata, **columns, row_index=None, seed=seed, positions=torch.zeros_like(seed), facts=facts
    )


LINES = {
    RoundedQ: "verify near distributions",
    LongBonus: "verify crossing",
    RowsOfARequestShareASeed: "verify unseeded acceptance",
    DraftsShareNoise: "verify shared noise",
}


def subject(bug, effort=None, seed=0):
    return Subject(
        bug.__name__,
        capabilities={name: OPERATIONS[name] for name in ("sample", "verify")},
        device="cpu",
        build=lambda operation, need: bug(need),
        quick=True,
        effort=effort,
        seed=seed,
    )


def line(bug, name, effort=None):
    (found,) = run(subject(bug, effort), only=name).lines
    return found


@pytest.mark.parametrize("bug", LINES, ids=lambda bug: bug.__name__)
@pytest.mark.fast_first
def test_a_mistake_in_one_corner_turns_its_line_red(bug):
    found = line(bug, LINES[bug], FEW)
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail


@pytest.mark.slow
def test_a_mistake_of_wide_vocabularies_turns_their_line_red():
    found = line(NarrowResidual, "verify crossing, wide")
    assert found.status is Status.FAILED, found


@pytest.mark.parametrize("name", LINES.values())
@pytest.mark.fast_first
def test_the_lines_are_green_without_a_mistake(name):
    assert line(VerifierMutant, name, Effort.tiny()).status is Status.PASSED


@pytest.mark.slow
def test_the_line_of_wide_vocabularies_is_green_without_a_mistake():
    assert line(VerifierMutant, "verify crossing, wide").status is Status.PASSED


def fuzzed(bug, number):
    given = subject(bug, Effort.tiny())
    return KIT.fuzz(Verifying(given), np.random.default_rng([0, number]), Trial("fuzz", 0))


def test_a_random_case_is_made_of_its_generator_alone():
    first, again, other = (fuzzed(VerifierMutant, number) for number in (1, 1, 2))
    assert first == again != other


@pytest.mark.slow
def test_random_cases_find_a_mistake_and_name_the_request():
    class Unfiltered(Corner):
        dtype = torch.float16

        def change(self, target_logits, drafts, metadata):
            off = dict.fromkeys(("top_k", "top_p", "min_p", "joint"))
            facts = replace(BatchFacts(), max_logprobs=metadata.facts.max_logprobs)
            return target_logits, drafts, replace(metadata, **off, facts=facts)

    found = []
    for number in range(32):
        try:
            fuzzed(Unfiltered, number)
        except Violation as violation:
            found.append(str(violation))
    assert len(found) > 1
    for words in found:
        assert re.match(r"V = \d+ in float16, \w+, \w+.*: .* drafts \[.* needs ", words), words


def test_a_seed_makes_one_decision_narrow_and_all_of_them_as_asked():
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
        y, draft = pair(rng, family, size, SamplingParams(min_p=0.05))
        assert y.shape == draft.shape == (size,)
        assert np.isfinite(y).all()
        assert np.isfinite(draft).all()
        assert family == "levels" or size < 33 or (y != draft).any()
    for count in (1, 4, 14):
        ids = places(rng, size, min(size, count))
        assert size - 1 in ids
        assert len(set(ids.tolist())) == len(ids) == min(size, count)


def test_coincidences_show_noise_that_is_shared_at_one_distance_and_none_that_is_not():
    rng = np.random.default_rng(0)
    even = np.full(500, 1 / 500)
    fine = [coincidences(rng.integers(0, 500, 400), even, 100).p_value for _ in range(200)]
    assert min(fine) > 1e-4
    values = rng.integers(0, 500, 400)
    values[300:320] = values[7:27]
    verdict = coincidences(values, even, 100)
    assert verdict.p_value < 1e-20
    assert verdict.worst == "values 93 rows and 2 calls apart equal 20 times, expected 0.2"
