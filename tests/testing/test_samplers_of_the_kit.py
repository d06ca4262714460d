"""The kit on correct samplers: every line is green, and every unadvertised capability is refused in words."""

from dataclasses import replace

import pytest

import numpy_sampler
from mutants.samplers import CUDA_SAMPLERS, NATIVE, PLAIN, SamplerMutant, sampler_mutant
from tokendraw_testing import Effort, Status, run

QUICK = Effort.of(quick=True, device_type="cpu")
FEW_DRAWS = replace(QUICK, draws=QUICK.draws // 5, tiled_draws=QUICK.tiled_draws // 5, tails=QUICK.tails[:1])
"""For what the kit asks of a sampler, which the number of draws does not change."""
FEW_ROWS = replace(FEW_DRAWS, crossed_sizes=(33, 5003, 65_543), crossed_batch=60, crossed_rows=40)
"""For a sampler that takes a row at a time."""


def report(capabilities=NATIVE, *lines, effort=None):
    subject = sampler_mutant(SamplerMutant, capabilities=capabilities).subject(effort=effort)
    return run(subject, only=lines or None)


@pytest.mark.gpu
def test_the_lines_of_a_device_are_green_without_a_bug():
    for mutant in CUDA_SAMPLERS:
        (result,) = sampler_mutant(SamplerMutant).look(*mutant.lines, device="cuda")
        assert result.status is Status.PASSED, result


@pytest.mark.slow
def test_a_sampler_in_float64_numpy_is_green_in_every_line():
    """Other seeds give the same result: a false alarm has a probability of 1e-6."""
    under_test = numpy_sampler.subject()
    under_test.effort = FEW_ROWS
    assert run(under_test).failed == ()


@pytest.mark.slow
def test_a_sampler_without_capabilities_is_refused_everything_in_words():
    result = report(PLAIN, effort=FEW_DRAWS)
    assert result.failed == ()
    refused = {line.name: line.detail for line in result.lines if line.status is Status.REFUSED}
    (details,) = [line.detail for line in result.lines if line.name == "output"]
    assert details == "5 shapes; 22 requests beyond the capabilities refused"
    assert refused["graph capture"] == (
        "'SamplerMutant' cannot serve the operation 'sample' on cpu: the request needs graph-safe calls, found no "
        "such promise."
    )
    assert set(refused) == {
        "batch invariance",
        "sync-free",
        "graph capture",
    }


@pytest.mark.slow
def test_limits_are_served_up_to_and_refused_beyond():
    limited = replace(NATIVE, max_top_k=50, max_vocab_size=3000)
    result = report(limited, "limits", "last ids")
    assert result.failed == ()
    assert [line.name for line in result.lines] == ["limits", "last ids"]
    (words,) = [line.detail for line in result.lines if line.name == "limits"]
    assert "cannot serve top_k above 50, which" in words
    assert "the request needs a vocabulary of 3001, found a limit of 3000" in words


@pytest.mark.slow
def test_a_sampler_that_keeps_ties_is_no_sampler_with_exactly_k():
    """tests/testing/test_few_promises.py has one that keeps exactly k."""
    native = report(replace(NATIVE, tie_rule="exact_k"), "crossed distributions")
    assert [line.name for line in native.failed] == ["crossed distributions"]
