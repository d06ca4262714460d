"""The kit at its smallest, for kernels in an interpreter: every line is run, in few rows, and most bugs still show."""

import pytest

from mutants import by_name
from mutants.samplers import SAMPLERS, SamplerMutant, sampler_mutant
from tokendraw_testing import Effort, Status, run

MUTANTS = by_name(SAMPLERS)
TOO_SMALL_FOR = {
    "1 % of the tail dropped": ["crossed requests"],  # the line of its own sees nothing, this one does
    "noise index wrapping at 2**15 rows": [],
    "uniforms of 24 bits": [],
    "p is halved where p <= 0.01 and the row is flat and no threshold asked for": [],
    "p is halved where p <= 0.01 and the row is flat, of a sampler without seeds and thresholds": [],
    "the deviation of a sample in place of the population": [],  # seen with two of six seeds
}
"""Bugs that take more draws, or more rows, than an interpreter has time for."""


class Counting(SamplerMutant):
    rows = 0

    def change(self, logits, metadata):
        Counting.rows += len(logits)
        return logits, metadata


def tiny(mutant, **options):
    return mutant.subject(effort=Effort.tiny(), **options)


@pytest.mark.slow
def test_every_line_is_run_in_few_rows():
    report = run(tiny(sampler_mutant(Counting)))
    interpreted = "needs compiled kernels, found an effort for interpreted ones"
    assert report.failed == ()
    assert {line.name: line.detail for line in report.lines if line.status is not Status.PASSED} == {
        "threads": interpreted,
        "sync-free": "needs a CUDA device, found cpu",
        "graph capture": "needs a CUDA device, found cpu",
    }
    assert Counting.rows < 7000


@pytest.mark.parametrize("bug", [name for name in MUTANTS if name not in TOO_SMALL_FOR])
def test_a_planted_bug_turns_the_line_red(bug):
    lines = MUTANTS[bug].look(effort=Effort.tiny())
    assert MUTANTS[bug].is_seen(lines), lines


@pytest.mark.parametrize("bug", TOO_SMALL_FOR)
def test_a_bug_with_too_few_draws_is_seen_by_the_listed_lines(bug):
    lines = [*MUTANTS[bug].lines, *TOO_SMALL_FOR[bug]]
    report = run(tiny(MUTANTS[bug]), only=lines)
    assert [line.name for line in report.failed] == [
        line.name for line in report.lines if line.name in TOO_SMALL_FOR[bug]
    ]
