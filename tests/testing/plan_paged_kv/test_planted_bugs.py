"""The kit on planners with one bug each: the line that one would expect turns red, and none does on native."""

import pytest

import planted_plan_bugs as planted
import planted_races
from tokendraw.plugin import HostCapabilities
from tokendraw_testing import Subject, properties, run
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.report import Status

PROMISES = HostCapabilities(device_types=None, graph_safe=True, sync_free=True)
LINES = [prop.name for prop in properties("plan_paged_kv")]
PLANTED = {
    planted.StartsWhereTheLastEnded: "plan values",
    planted.OnePageTooMany: "plan edges",
    planted.EmptyHasALastPage: "plan edges",
    planted.NegativeLengthsCount: "plan clamped lengths",
    planted.LimitWraps: "plan large numbers",
    planted.RoundingWraps: "plan large numbers",
    planted.PadsWithMinusOne: "plan padding",
    planted.TokensWithoutPages: "plan without pages",
    planted.KeepsTheTail: "plan buffers",
    planted.KeepsTheFirst: "plan buffers",
    planted.WritesBehind: "plan buffers",
    planted.AnotherPlan: "plan buffers",
    planted.ClampsInPlace: "plan inputs unmodified",
    planted.DenseTables: "plan strided tables",
    planted_races.OneScratchForPlans: "plan threads",
}
NEEDS_CUDA = {
    planted.Waits: "plan sync-free",
    planted.Remembers: "plan graph replay",
}


def subject(bug, device="cpu", capabilities=PROMISES, **options):
    return Subject(
        bug.__name__,
        capabilities={"plan_paged_kv": capabilities},
        device=device,
        build=lambda operation, need: bug(),
        **options,
    )


def statuses(report):
    return {line.name: line.status for line in report.lines}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_turns_its_line_red(bug):
    (found,) = run(subject(bug), only=PLANTED[bug]).lines
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail  # red for its bug, not for a slip of this suite


@pytest.mark.parametrize("effort", [None, Effort.tiny()], ids=["full", "tiny"])
def test_every_line_is_green_without_a_bug(effort):
    found = statuses(run(subject(planted.Honest, effort=effort)))
    assert list(found) == LINES
    not_run = [*NEEDS_CUDA.values(), *["plan threads"] * (effort is not None)]  # in an interpreter
    assert found == {name: Status.NOT_RUN if name in not_run else Status.PASSED for name in LINES}


def test_every_line_that_needs_no_device_has_a_planted_bug():
    assert {*PLANTED.values(), *NEEDS_CUDA.values()} == set(LINES)


def test_a_line_says_which_value_is_wrong():
    (found,) = run(subject(planted.PadsWithMinusOne), only="plan padding").lines
    assert found.detail == "a call needs to return page_indices[6] 0, found -1"


def test_what_is_not_promised_is_refused_in_words():
    report = run(subject(planted.Honest, capabilities=HostCapabilities(device_types=None)))
    refused = {line.name: line.detail for line in report.lines if line.status is Status.REFUSED}
    assert list(refused) == ["plan sync-free", "plan graph replay"]
    assert refused["plan graph replay"].startswith(
        "'Honest' cannot serve the operation 'plan_paged_kv' on cpu: the request needs graph-safe calls, "
        "found no such promise."
    )


@pytest.mark.gpu
@pytest.mark.parametrize("bug", NEEDS_CUDA, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_a_device_turns_its_line_red_there(bug):
    line = NEEDS_CUDA[bug]
    assert statuses(run(subject(bug, "cuda"), only=line)) == {line: Status.FAILED}


@pytest.mark.gpu
def test_every_line_is_green_without_a_bug_on_a_cuda_device():
    found = statuses(run(subject(planted.Honest, "cuda")))
    assert found.pop("plan threads") is Status.NOT_RUN
    assert set(found.values()) == {Status.PASSED}
