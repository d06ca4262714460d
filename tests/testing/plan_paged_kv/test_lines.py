"""The kit's lines on planners with one planted bug each, and on native."""

import pytest

from mutants import by_name, subject_of
from mutants.planners import CUDA_PLANNERS, PLANNERS, PROMISES, PlannerMutant
from tokendraw.plugin import HostCapabilities
from tokendraw_testing import Effort, Status, properties, run

LINES = [prop.name for prop in properties("plan_paged_kv")]
CUDA_LINES = {line for mutant in CUDA_PLANNERS for line in mutant.lines}


def subject(capabilities=PROMISES, **options):
    return subject_of("plan_paged_kv", capabilities, PlannerMutant, **options)


def statuses(report):
    return {line.name: line.status for line in report.lines}


@pytest.mark.parametrize("effort", [None, Effort.tiny()], ids=["full", "tiny"])
def test_every_line_is_green_without_a_bug(effort):
    result = statuses(run(subject(effort=effort)))
    assert list(result) == LINES
    not_run = [*CUDA_LINES, *["plan threads"] * (effort is not None)]  # in an interpreter
    assert result == {name: Status.NOT_RUN if name in not_run else Status.PASSED for name in LINES}


def test_every_line_that_needs_no_device_has_a_planted_bug():
    seen = {line for mutant in PLANNERS for line in mutant.lines}
    assert seen | CUDA_LINES | {"plan threads"} == set(LINES)


def test_a_line_says_which_value_is_wrong():
    (result,) = by_name(PLANNERS)["padding of -1"].look()
    assert result.detail == "a call needs to return page_indices[17] 0, found -1"


def test_unadvertised_calls_are_refused_in_words():
    report = run(subject(capabilities=HostCapabilities(device_types=None)))
    refused = {line.name: line.detail for line in report.lines if line.status is Status.REFUSED}
    assert list(refused) == ["plan sync-free", "plan graph replay"]
    assert refused["plan graph replay"].startswith(
        "'PlannerMutant' cannot serve the operation 'plan_paged_kv' on cpu: the request needs graph-safe calls, "
        "found no such promise."
    )


@pytest.mark.gpu
def test_every_line_is_green_without_a_bug_on_a_cuda_device():
    result = statuses(run(subject(device="cuda")))
    assert result.pop("plan threads") is Status.NOT_RUN
    assert set(result.values()) == {Status.PASSED}
