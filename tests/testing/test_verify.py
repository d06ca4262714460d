"""The kit's lines on verifiers with one planted bug each, and on correct verifiers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mutants import by_name
from mutants.verifiers import OPERATIONS, VERIFIERS, VerifierMutant, verifier_mutant
from tokendraw import philox
from tokendraw.plugin import VerifyCapabilities
from tokendraw_testing import Effort, Status, properties, reference, run
from tokendraw_testing.kit.subject import VerifySubject
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.verify import KIT, LARGEST_U, LEAST_U, U_POSITION

MUTANTS = by_name(VERIFIERS)
LINES = [prop.name for prop in properties() if prop.operation == "verify"]
DENSE = VerifyCapabilities(
    device_types=None,
    filters=(("top_k", "per_row"), ("top_p", "per_row")),
    seeding="launch",
    verify_modes=("rejection",),
    draft_kinds=("probs",),
)
"""What a kernel takes that knows probabilities alone, as many drafts for every request."""
EXACT = ("token 0 behind the last token", "placeholders skipped", "u in [0, 1), accepted if u <= p / q")


def verifier(cls=VerifierMutant, capabilities=OPERATIONS["verify"], **options):
    return verifier_mutant(cls, capabilities=capabilities).subject(**options)


def one_line(subject, line):
    (result,) = run(subject, only=line).lines
    return result


@pytest.mark.slow
def test_the_smallest_effort_runs_every_line_and_sees_what_is_exact():
    report = run(verifier(effort=Effort.tiny()), only=LINES)
    assert report.failed == ()
    assert [line.name for line in report.lines] == LINES
    assert [line.name for line in report.ended(Status.NOT_RUN)] == [
        "verify crossing, wide",
        "verify threads",
        "verify graph capture",
    ]
    assert [line.name for line in report.ended(Status.REFUSED)] == ["verify sync-free"]
    for name in EXACT:
        lines = MUTANTS[name].look(effort=Effort.tiny())
        assert MUTANTS[name].is_seen(lines), lines


@pytest.mark.slow
def test_a_verifier_with_few_capabilities_is_refused_the_rest_in_words():
    report = run(verifier(capabilities=DENSE, effort=Effort.tiny()), only=LINES)
    assert report.failed == ()
    refusals = {line.name: line.detail for line in report.ended(Status.REFUSED)}
    assert refusals.keys() == {
        "verify batch invariance",
        "verify sync-free",
        "verify graph capture",
    }
    (details,) = [line.detail for line in report.lines if line.name == "verify output"]
    assert details == "3 shapes of batches; 25 requests beyond the capabilities refused"


def test_a_call_beyond_the_capabilities_without_a_refusal_is_a_failure(monkeypatch):
    monkeypatch.setattr("tokendraw.calls.routing.LoadedBackend.reason_against", lambda *given: None)
    result = one_line(verifier(capabilities=DENSE), "verify output")
    assert (result.status, result.detail) == (
        Status.FAILED,
        "a call beyond the capabilities needs to be refused, found 'verify' called",
    )


@pytest.mark.parametrize(("seed", "word"), [(LEAST_U, 0), (LARGEST_U, 2**32 - 1)])
def test_the_seeds_of_the_ends_of_u_give_all_zeros_and_all_ones(seed, word):
    assert int(reference.random_words(seed, U_POSITION, 0, philox.ACCEPT)[0]) == word


@pytest.mark.gpu
def test_on_a_device_a_hidden_sync_is_red_where_there_is_to_be_none():
    class Waiting(VerifierMutant):
        def change(self, target_logits, drafts, metadata):
            bool(torch.isnan(target_logits[0, 0]))
            return target_logits, drafts, metadata

    promised = replace(OPERATIONS["verify"], sync_free=True)
    assert one_line(verifier(Waiting, promised, device="cuda"), "verify sync-free").status is Status.FAILED


def fuzzed(subject, number):
    return KIT.fuzz(VerifySubject(subject), np.random.default_rng([0, number]), Trial("fuzz", 0))


def test_a_random_case_depends_on_the_generator_alone():
    subject = verifier(effort=Effort.tiny())
    first, again, other = (fuzzed(subject, number) for number in (1, 1, 2))
    assert first == again != other
