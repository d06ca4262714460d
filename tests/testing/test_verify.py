"""The kit on verifiers with one bug each: the line that one would expect turns red, and none does on honest ones."""

from dataclasses import replace

import pytest
import torch

import planted_verify_bugs as planted
from tokendraw import philox
from tokendraw.plugin import VerifyCapabilities
from tokendraw_native import plugin
from tokendraw_testing import Subject, properties, reference, run
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.report import Status
from tokendraw_testing.verify.edges import LARGEST_U, LEAST_U, U_POSITION

OPERATIONS = plugin.tokendraw_describe().operations
LINES = [prop.name for prop in properties() if prop.operation == "verify"]
DENSE = VerifyCapabilities(
    device_types=None,
    filters=(("top_k", "per_row"), ("top_p", "per_row")),
    seeding="launch",
    verify_modes=("rejection",),
    draft_kinds=("probs",),
)
"""What a kernel takes that knows probabilities alone, as many drafts for every request."""
PLANTED = {
    planted.ResidualSharesTheDraftsNoise: "verify rejection",
    planted.RecoveredFromTheTarget: "verify rejection",
    planted.AcceptanceSharesTheDraftsNoise: "verify rejection",
    planted.AcceptsAtZero: "verify sure drafts",
    planted.RejectsAtOne: "verify sure drafts",
    planted.UnfilteredTarget: "verify filters",
    planted.BonusFromTheRowBefore: "verify bonus",
    planted.PlaceholdersAreSkipped: "verify placeholders",
    planted.PaddedWithZeros: "verify output",
    planted.CoupledWithoutTiles: "verify coupled",
    planted.EveryRowCounts: "verify poisoned rows",
    planted.GreedyOnATieTakesTheLast: "verify greedy rows",
    planted.KeptMassOfTheFirstRow: "verify logprobs",
    planted.KeptMassBehindTheLastToken: "verify logprobs",
    planted.ShareRoundedBeforeItsLogarithm: "verify logprob bounds",
    planted.InPlace: "verify inputs unmodified",
    planted.SlotOfTheRow: "verify batch invariance",
}
STATISTICS = {
    planted.RecoveredFromTheTarget: "verify draft_probs",
    planted.UnfilteredTarget: "verify filters",
    planted.BonusFromTheRowBefore: "verify bonus",
}
"""Bugs that show without seeds."""


def subject(bug, capabilities=OPERATIONS["verify"], device="cpu", **options):
    options = {"quick": True} | options
    offered = {"sample": OPERATIONS["sample"]} | ({"verify": capabilities} if capabilities else {})
    return Subject(
        bug.__name__,
        capabilities=offered,
        device=device,
        build=lambda operation, need: bug(device, need),
        **options,
    )


def one_line(bug, line, *given, **options):
    (found,) = run(subject(bug, *given, **options), only=line).lines
    return found


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
@pytest.mark.fast_first
def test_a_planted_bug_turns_its_line_red(bug):
    found = one_line(bug, PLANTED[bug])
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail


@pytest.mark.fast_first
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_most_show_in_the_chains_of_the_contract_too(bug):
    unseen = (
        planted.AcceptsAtZero,
        planted.RejectsAtOne,
        planted.EveryRowCounts,
        planted.GreedyOnATieTakesTheLast,
        planted.KeptMassOfTheFirstRow,
        planted.KeptMassBehindTheLastToken,
        planted.ShareRoundedBeforeItsLogarithm,
        planted.InPlace,
    )
    assert one_line(bug, "verify seeded chains").status is (Status.PASSED if bug in unseen else Status.FAILED)


@pytest.mark.parametrize("bug", STATISTICS, ids=lambda bug: bug.__name__)
@pytest.mark.fast_first
def test_a_planted_bug_turns_its_line_red_without_seeds(bug):
    found = one_line(bug, STATISTICS[bug], DENSE)
    assert found.status is Status.FAILED, found
    assert "drawn" in found.detail


@pytest.mark.slow
def test_other_random_numbers_leave_it_green():
    """At the smallest effort, as quick runs of many more seeds did."""
    assert run(subject(planted.Honest, seed=1, effort=Effort.tiny()), only=LINES).failed == ()


@pytest.mark.slow
def test_the_smallest_effort_runs_every_line_and_sees_what_is_exact():
    report = run(subject(planted.Honest, effort=Effort.tiny()), only=LINES)
    assert report.failed == ()
    assert [line.name for line in report.lines] == LINES
    assert [line.name for line in report.ended(Status.NOT_RUN)] == [
        "verify threads",
        "verify crossing, wide",
        "verify graph capture",
    ]
    assert [line.name for line in report.ended(Status.REFUSED)] == ["verify sync-free"]
    exact = (planted.PaddedWithZeros, planted.PlaceholdersAreSkipped, planted.AcceptsAtZero)
    for bug in exact:
        assert one_line(bug, PLANTED[bug], effort=Effort.tiny()).status is Status.FAILED, bug


@pytest.mark.slow
def test_a_verifier_that_takes_little_is_given_no_more_and_refused_the_rest_in_words():
    report = run(subject(planted.Honest, DENSE, effort=Effort.tiny()), only=LINES)
    assert report.failed == ()
    told = {line.name: line.detail for line in report.ended(Status.REFUSED)}
    assert told.keys() == {
        "verify logprobs",
        "verify greedy rows",
        "verify ragged drafts",
        "verify placeholders",
        "verify coupled",
        "verify draft_logits",
        "verify chosen drafts",
        "verify seeded chains",
        "verify fp64 noise",
        "verify batch invariance",
        "verify sync-free",
        "verify graph capture",
    }
    assert told["verify chosen drafts"] == (
        "'Honest' cannot serve drafts that were not drawn, which this batch may hold, and has no companion. "
        "Install one that can (`pip install ./plugins/native` in tokendraw's checkout), or, if the batch holds "
        "none, say so in SamplingMetadata.facts or Drafts."
    )
    assert (
        "cannot serve the operation 'verify' on cpu: the request needs fp64 noise"
        in told["verify fp64 noise"]
    )


def test_what_the_core_does_not_refuse_is_a_failure(monkeypatch):
    monkeypatch.setattr("tokendraw.calls.selection.LoadedBackend.reason_against", lambda *given: None)
    found = one_line(planted.Honest, "verify coupled", DENSE)
    assert (found.status, found.detail) == (
        Status.FAILED,
        "a call beyond the capabilities needs to be refused, found 'verify' called",
    )


def test_a_sampler_that_verifies_nothing_has_no_line():
    assert run(subject(planted.Honest, None), only=LINES).lines == ()


def test_a_promise_without_a_mode_is_a_failure():
    nothing = replace(DENSE, verify_modes=())
    assert one_line(planted.Honest, "verify output", nothing).detail == (
        "'verify' needs a mode and a kind of drafts, found none advertised"
    )


def test_the_installed_native_verifies_what_its_plugin_offers():
    found = Subject.installed("native", device="cpu")
    assert found.capabilities == OPERATIONS
    assert found.built("verify") is found.built("verify")
    assert callable(found.built("verify").verify)


@pytest.mark.parametrize(("seed", "word"), [(LEAST_U, 0), (LARGEST_U, 2**32 - 1)])
def test_the_seeds_of_the_ends_of_u_are_what_they_say(seed, word):
    assert int(reference.random_words(seed, U_POSITION, 0, philox.ACCEPT)[0]) == word


@pytest.mark.gpu
def test_on_a_device_an_honest_verifier_is_green():
    found = one_line(planted.Honest, "verify graph capture", device="cuda")
    assert found.status is Status.PASSED, found


@pytest.mark.gpu
def test_on_a_device_a_hidden_sync_is_red_where_there_is_to_be_none():
    class Waiting(planted.Honest):
        def change(self, target_logits, drafts, metadata):
            bool(torch.isnan(target_logits[0, 0]))
            return target_logits, drafts, metadata

    promised = replace(OPERATIONS["verify"], sync_free=True)
    assert one_line(Waiting, "verify sync-free", promised, device="cuda").status is Status.FAILED
