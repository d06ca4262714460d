"""The kit on samplers with one bug each: the line that one would expect turns red, and none does on the honest one."""

from dataclasses import replace

import pytest

import numpy_sampler
from planted_bugs import (
    NATIVE,
    NEEDS_CUDA,
    PLAIN,
    PLANTED,
    Honest,
    Planted,
    TiesByIndex,
    Uniforms24Bits,
    subject,
)
from tokendraw_testing import run
from tokendraw_testing.kit.effort import Effort
from tokendraw_testing.kit.report import Status

QUICK = Effort.of(quick=True, device_type="cpu")
ALL_TAILS = Effort.of(quick=True, device_type="cuda").tails
FEW_DRAWS = replace(QUICK, draws=QUICK.draws // 5, tiled_draws=QUICK.tiled_draws // 5, tails=QUICK.tails[:1])
"""For what the kit asks of a sampler, which the number of draws does not change."""
FEW_ROWS = replace(
    FEW_DRAWS, crossed_sizes=(33, 5003, 65_543), crossed_batch=60, crossed_rows=40, widest=None
)
"""For a sampler that takes a row at a time."""


def one_line(planted, line, device="cpu"):
    """The line of a report about one property."""
    under_test = subject(planted, device)
    if planted.sampler is Uniforms24Bits:  # cheap enough for every gap, in calls of many rows
        under_test.effort = replace(under_test.effort, tails=ALL_TAILS, elements=1 << 26)
    (found,) = run(under_test, only=[line]).lines
    return found


@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.fast_first
def test_a_planted_bug_turns_its_line_red(bug):
    found = one_line(PLANTED[bug], PLANTED[bug].line)
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail  # red for its bug, not for a slip of this suite


@pytest.mark.fast_first
@pytest.mark.parametrize("line", sorted({planted.line for planted in PLANTED.values()}))
def test_the_same_line_is_green_without_the_bug(line):
    found = one_line(Planted(Honest, line, NATIVE), line)
    assert found.status is Status.PASSED, found


@pytest.mark.gpu
@pytest.mark.parametrize("bug", NEEDS_CUDA)
def test_a_planted_bug_of_a_device_turns_its_line_red_there(bug):
    found = one_line(NEEDS_CUDA[bug], NEEDS_CUDA[bug].line, "cuda")
    assert found.status is Status.FAILED, found
    honest = one_line(Planted(Honest, NEEDS_CUDA[bug].line), NEEDS_CUDA[bug].line, "cuda")
    assert honest.status is Status.PASSED, honest


@pytest.mark.slow
def test_a_sampler_in_float64_numpy_is_green_in_every_line():
    """It stays so at other seeds: a false alarm comes once in a million runs."""
    under_test = numpy_sampler.subject()
    under_test.effort = FEW_ROWS
    assert run(under_test).failed == ()


@pytest.mark.slow
def test_a_sampler_that_promises_nothing_is_refused_everything_else_in_words():
    under_test = subject(Planted(Honest, "", PLAIN))
    under_test.effort = FEW_DRAWS
    report = run(under_test)
    assert report.failed == ()
    refused = {line.name: line.detail for line in report.lines if line.status is Status.REFUSED}
    assert refused["greedy rows"] == (
        "'Honest' cannot serve greedy rows, which this batch may hold, and has no companion. Install one that can "
        "(`pip install ./plugins/native` in tokendraw's checkout), or, if the batch holds none, say so in "
        "SamplingMetadata.facts."
    )
    assert refused["graph capture"] == (
        "'Honest' cannot serve the operation 'sample' on cpu: the request needs graph-safe calls, found no such "
        "promise. Nothing else is available here; run `pip install ./plugins/native` in tokendraw's checkout. "
        "Leave out sampler= to let "
        "tokendraw choose."
    )
    assert set(refused) == {
        "greedy rows",
        "valid flag",
        "bfloat16 logits",
        "float16 logits",
        "top_k",
        "top_p",
        "min_p",
        "filter order top_k_first",
        "filter order joint",
        "neighbouring seeds",
        "seeded draws",
        "fp64 noise",
        "batch invariance",
        "raw_logprobs",
        "raw_logits",
        "processed_logprobs",
        "processed_logits",
        "temperature_logprobs",
        "sync-free",
        "graph capture",
        "sharded requests",
    }


@pytest.mark.slow
def test_limits_are_served_up_to_and_refused_beyond():
    limited = replace(NATIVE, max_top_k=50, max_vocab_size=3000)
    report = run(subject(Planted(Honest, "", limited)), only=["limits", "range and support", "top_k"])
    assert report.failed == ()
    assert [line.name for line in report.lines] == ["range and support", "limits", "top_k"]
    (words,) = [line.detail for line in report.lines if line.name == "limits"]
    assert "cannot serve top_k above 50, which" in words
    assert "the request needs a vocabulary of 3001, found a limit of 3000" in words


@pytest.mark.slow
def test_a_sampler_that_keeps_exactly_k_is_held_to_that():
    capabilities = replace(PLANTED["ties by index while declaring values"].capabilities, tie_rule="exact_k")
    report = run(
        subject(Planted(TiesByIndex, "ties", replace(capabilities, filters=(("top_k", "per_row"),)))),
        only=["ties", "top_k"],
    )
    assert report.failed == ()
    honest = run(subject(Planted(Honest, "ties", replace(NATIVE, tie_rule="exact_k"))), only=["ties"])
    assert [line.name for line in honest.failed] == ["ties"]
