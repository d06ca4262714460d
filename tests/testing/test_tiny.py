"""The kit at its smallest, for kernels in an interpreter: every line is run, in few rows, and most bugs still show."""

import pytest

import numpy_sampler
from planted_bugs import PLANTED, Honest, Planted, subject
from tokendraw_testing import Subject, run
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.report import Status

TOO_SMALL_FOR = {
    "1 % of the tail dropped": ["tails", "top_p"],  # the line of its own sees nothing, these do
    "noise index wrapping at 2**15 rows": [],
    "uniforms of 24 bits": [],
}
"""Bugs that take more draws, or more rows, than an interpreter has time for."""


class Counting(Honest):
    rows = 0

    def change(self, logits, metadata):
        Counting.rows += len(logits)
        return logits, metadata


def tiny(planted, seed=0):
    under_test = subject(planted, seed=seed)
    under_test.effort = Effort.tiny()
    return under_test


@pytest.mark.slow
def test_every_line_is_run_in_few_rows():
    report = run(tiny(Planted(Counting, "")))
    interpreted = "needs compiled kernels, found an effort for interpreted ones"
    assert report.failed == ()
    assert {line.name: line.detail for line in report.lines if line.status is not Status.PASSED} == {
        "rows behind 2**31 elements": interpreted,
        "threads": interpreted,
        "widest vocabulary": "needs a vocabulary above 262,144, found an effort without one",
        "sync-free": "needs a CUDA device, found cpu",
        "graph capture": "needs a CUDA device, found cpu",
    }
    assert Counting.rows < 7000


@pytest.mark.parametrize("bug", [bug for bug in PLANTED if bug not in TOO_SMALL_FOR])
def test_a_planted_bug_turns_its_line_red(bug):
    (found,) = run(tiny(PLANTED[bug]), only=[PLANTED[bug].line]).lines
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail


@pytest.mark.parametrize("bug", TOO_SMALL_FOR)
def test_a_bug_that_takes_more_draws_is_seen_where_this_says(bug):
    lines = [PLANTED[bug].line, *TOO_SMALL_FOR[bug]]
    report = run(tiny(PLANTED[bug]), only=lines)
    assert [line.name for line in report.failed] == [
        line.name for line in report.lines if line.name in TOO_SMALL_FOR[bug]
    ]


@pytest.mark.slow
def test_correct_samplers_stay_green():
    """As in 100 runs of each, with other seeds."""
    assert run(tiny(Planted(Honest, ""), seed=1)).failed == ()
    under_test = numpy_sampler.subject(seed=2)
    under_test.effort = Effort.tiny()
    assert run(under_test).failed == ()


def test_an_effort_stands_in_place_of_quick_and_full():
    under_test = Subject(
        "numpy",
        capabilities={"sample": numpy_sampler.CAPABILITIES},
        device="cpu",
        build=lambda operation, need: numpy_sampler.NumpySampler(),
        effort=Effort.tiny(),
    )
    assert under_test.effort == Effort.tiny()
    assert run(under_test, only="tails").lines[0].detail == "gaps 8"
