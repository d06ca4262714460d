"""The kit on planners with one bug each: the line that one would expect turns red, and none does on native."""

import pytest

from mutants import by_name
from mutants.planners import CUDA_PLANNERS, PLANNERS, PROMISES, PlannerMutant
from tokendraw.plugin import HostCapabilities
from tokendraw_testing import Effort, Status, Subject, properties, run

LINES = [prop.name for prop in properties("plan_paged_kv")]
CUDA_LINES = {line for mutant in CUDA_PLANNERS for line in mutant.lines}


def subject(bug=PlannerMutant, device="cpu", capabilities=PROMISES, **options):
    return Subject(
        bug.__name__,
        capabilities={"plan_paged_kv": capabilities},
        device=device,
        build=lambda operation, need: bug(),
        **options,
    )


def statuses(report):
    return {line.name: line.status for line in report.lines}


@pytest.mark.parametrize("effort", [None, Effort.tiny()], ids=["full", "tiny"])
def test_every_line_is_green_without_a_bug(effort):
    found = statuses(run(subject(effort=effort)))
    assert list(found) == LINES
    not_run = [*CUDA_LINES, *["plan threads"] * (effort is not None)]  # in an interpreter
    assert found == {name: Status.NOT_RUN if name in not_run else Status.PASSED for name in LINES}


def test_every_line_that_needs_no_device_has_a_planted_bug():
    seen = {line for mutant in PLANNERS for line in mutant.lines}
    assert seen | CUDA_LINES | {"plan threads"} == set(LINES)


def test_a_line_says_which_value_is_wrong():
    (found,) = by_name(PLANNERS)["padding of -1"].look()
    assert found.detail == "a call needs to return page_indices[6] 0, found -1"


def test_what_is_not_promised_is_refused_in_words():
    report = run(subject(capabilities=HostCapabilities(device_types=None)))
    refused = {line.name: line.detail for line in report.lines if line.status is Status.REFUSED}
    assert list(refused) == ["plan sync-free", "plan graph replay"]
    assert refused["plan graph replay"].startswith(
        "'PlannerMutant' cannot serve the operation 'plan_paged_kv' on cpu: the request needs graph-safe calls, "
        "found no such promise."
    )


@pytest.mark.gpu
def test_every_line_is_green_without_a_bug_on_a_cuda_device():
    found = statuses(run(subject(device="cuda")))
    assert found.pop("plan threads") is Status.NOT_RUN
    assert set(found.values()) == {Status.PASSED}
