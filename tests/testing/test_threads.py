"""The kit's lines with several threads: races turn a line red, and the number of threads is restored."""

import sys
import threading
from typing import ClassVar

import pytest
import torch

from mutants.races import CAPABILITIES, RACES
from mutants.samplers import SamplerMutant, sampler_mutant
from tokendraw_testing import Status, Subject, run
from tokendraw_testing.kit import threads, workers
from tokendraw_testing.kit.run import fuzz


def sampler(made, **options):
    return sampler_mutant(made, capabilities=CAPABILITIES["sample"]).subject(**options)


def one_line(under_test, name):
    (line,) = run(under_test, only=name).lines
    return line


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
@pytest.mark.fast_first
def test_a_race_turns_the_line_red(race):
    lines = race.look()
    assert race.is_seen(lines), lines
    how = (
        "one object in 2 Python threads at once"
        if "one buffer" in race.name
        else f"{threads.thread_counts()[0]} threads"
    )
    assert how in lines[0].detail


# The numbers of threads


class Watching(SamplerMutant):
    """Notes the number of threads of each call."""

    seen: ClassVar[list[int]] = []

    def change(self, logits, metadata):
        self.seen.append(torch.get_num_threads())
        return logits, metadata


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_calls_are_made_with_two_threads_and_with_as_many_as_there_are_cores(monkeypatch, two_threads):
    monkeypatch.setattr(threads, "usable_cores", lambda: 5)
    Watching.seen = []
    interval = sys.getswitchinterval()
    assert one_line(sampler(Watching), "threads").status is Status.PASSED
    assert sorted(set(Watching.seen)) == [1, 2, 5]
    assert (torch.get_num_threads(), sys.getswitchinterval()) == (2, interval)


@pytest.mark.slow
def test_the_remaining_lines_and_random_cases_compute_with_a_single_thread(two_threads):
    Watching.seen = []
    under_test = sampler(Watching)
    assert run(under_test, only=["output", "crossed logprobs"]).passed
    assert fuzz(under_test, 0.2).passed
    assert set(Watching.seen) == {1}
    assert torch.get_num_threads() == 2


def counts_around(under_test, name):
    """Return the number of threads before a line, its status, and the number afterwards; runs in a worker."""
    before = torch.get_num_threads()
    return before, str(one_line(under_test, name).status), torch.get_num_threads()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_starts")
def test_the_processes_of_jobs_stay_at_one_thread_each():
    under_test = Subject.installed("native", device="cpu", quick=True)
    result = dict(workers.results(under_test, counts_around, ["process threads", "verify threads"], 2))
    assert result == dict.fromkeys(["process threads", "verify threads"], (1, "passed", 1))


@pytest.mark.slow
@pytest.mark.parametrize("number", ["every", "a single"])
def test_an_exception_in_a_thread_is_the_failure(number):
    main, callers = threading.main_thread(), []

    class Raises(SamplerMutant):
        def change(self, logits, metadata):
            thread = threading.current_thread()
            if thread is not main:
                callers.append(thread)
                if number == "every" or thread is callers[0]:
                    raise RuntimeError("no context in this thread")
            return logits, metadata

    result = one_line(sampler(Raises), "threads")
    assert (result.status, result.detail) == (
        Status.FAILED,
        "a call raised RuntimeError: no context in this thread",
    )
