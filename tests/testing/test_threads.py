"""The lines of the kit that compute with several threads: races turn them red, and the numbers of threads come back."""

import os
import sys
import threading
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

import planted_races
from planted_bugs import NATIVE, Honest
from tokendraw.plugin import HostCapabilities, Sm90W4Capabilities
from tokendraw_native import plugin
from tokendraw_testing import Effort, Status, Subject, properties, run
from tokendraw_testing.conformance import SamplerConformance
from tokendraw_testing.kit import threads, workers
from tokendraw_testing.kit.fuzz import fuzz

OPERATIONS = plugin.tokendraw_describe().operations
FEW_DTYPES = replace(NATIVE, dtypes=("float32",), logprobs_modes=("raw_logprobs",))
LINES = ("threads", "verify threads", "process threads", "plan threads", "pack threads")


def subject(build, device="cpu", effort=None, **capabilities):
    return Subject(
        "acme",
        capabilities=capabilities,
        device=device,
        build=build,
        quick=True,
        effort=effort,
    )


def sampler(made):
    return subject(lambda operation, need: made(need, "cpu"), sample=FEW_DTYPES)


def verifier(build):
    return subject(
        lambda operation, need: build("cpu", need),
        verify=replace(OPERATIONS["verify"], dtypes=("float32",)),
    )


def processor(build):
    return subject(lambda operation, need: build(), process_logits=OPERATIONS["process_logits"])


def planner(build):
    return subject(lambda operation, need: build(), plan_paged_kv=HostCapabilities())


def packer(build):
    offered = Sm90W4Capabilities(formats=("fp4",), layouts=("v2",))
    return subject(lambda operation, need: build(), pack_sm90_w4=offered)


RACES = {
    "one scratch buffer for all threads of a sampler": (sampler(planted_races.OneScratch), "threads"),
    "one scratch buffer for logprobs": (sampler(planted_races.OneScratchForLogprobs), "threads"),
    "one buffer for all samplers": (sampler(planted_races.OneBuffer), "threads"),
    "one scratch buffer of a verifier": (verifier(planted_races.OneScratchInVerify), "verify threads"),
    "one buffer for all verifiers": (verifier(planted_races.OneBufferInVerify), "verify threads"),
    "one scratch buffer of a processor": (processor(planted_races.OneScratchForEdits), "process threads"),
    "one buffer for all processors": (processor(planted_races.OneBufferForEdits), "process threads"),
    "one scratch buffer of a planner": (planner(planted_races.OneScratchForPlans), "plan threads"),
    "one buffer for all planners": (planner(planted_races.OneBufferForPlans), "plan threads"),
    "one scratch buffer of a packer": (packer(planted_races.OneScratchForWeights), "pack threads"),
    "one buffer for all packers": (packer(planted_races.OneBufferForWeights), "pack threads"),
}


def one_line(under_test, name):
    (found,) = run(under_test, only=name).lines
    return found


@pytest.mark.parametrize("race", RACES)
@pytest.mark.fast_first
def test_a_race_turns_the_line_red(race):
    found = one_line(*RACES[race])
    assert found.status is Status.FAILED, found
    assert "a call raised" not in found.detail
    how = (
        "2 objects in 2 Python threads at once"
        if "one buffer" in race
        else f"{threads.thread_counts()[0]} threads"
    )
    assert how in found.detail


@pytest.mark.parametrize("name", LINES)
@pytest.mark.slow
def test_native_is_green(name):
    found = one_line(Subject.installed("native", device="cpu", quick=True), name)
    assert found.status is Status.PASSED, found
    assert found.detail.endswith(
        f"with {' and '.join(map(str, threads.thread_counts()))} threads, and 2 objects at once"
    )


def test_a_race_is_what_no_other_line_sees():
    """So the kit needs the line: every other one computes with one thread."""
    names = [prop.name for prop in properties("sample") if prop.name not in LINES]
    few = sampler(planted_races.OneScratch)
    few.effort = replace(Effort.tiny(), fewer=32, draws=16, tiled_draws=12, most_draws=12)
    assert run(
        few, only=[name for name in names if name in ("greedy rows", "seeded draws", "range and support")]
    ).passed


# The numbers of threads


class Watching(Honest):
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


def test_two_cores_or_one_are_looked_at_with_two_threads(monkeypatch):
    for cores in (1, 2):
        monkeypatch.setattr(threads, "usable_cores", lambda cores=cores: cores)
        assert threads.thread_counts() == (2,)


def test_the_number_of_threads_comes_back_after_a_line_that_fails(two_threads):
    assert one_line(sampler(planted_races.OneScratch), "threads").status is Status.FAILED
    assert torch.get_num_threads() == 2


def test_every_other_line_and_random_case_computes_with_one_thread(two_threads):
    Watching.seen = []
    under_test = sampler(Watching)
    assert run(under_test, only=["greedy rows", "ranks"]).passed
    assert not fuzz(under_test, 0.2).findings
    assert set(Watching.seen) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_the_tests_of_pytest_put_the_number_of_threads_back(two_threads):
    class TestAcme(SamplerConformance):
        pass

    Watching.seen = []
    TestAcme().test_threads(sampler(Watching))
    assert sorted(set(Watching.seen)) == sorted({1, *threads.thread_counts()})
    assert torch.get_num_threads() == 2


def counts_around(under_test, name):
    """The number of threads before the line of this name, its status, and the number behind it: runs in a worker."""
    before = torch.get_num_threads()
    return before, str(one_line(under_test, name).status), torch.get_num_threads()


@pytest.mark.slow
def test_the_processes_of_jobs_stay_at_one_thread_each():
    under_test = Subject.installed("native", device="cpu", quick=True)
    found = dict(workers.results(under_test, counts_around, ["process threads", "plan threads"], 2))
    assert found == dict.fromkeys(["process threads", "plan threads"], (1, "passed", 1))


# Where there is nothing to look at


def test_on_another_device_the_line_is_not_run():
    meta = subject(lambda operation, need: Honest(need, "meta"), device="meta", sample=FEW_DTYPES)
    found = one_line(meta, "threads")
    assert (found.status, found.detail) == (Status.NOT_RUN, "needs a CPU, found meta")


def test_interpreted_kernels_are_not_run():
    tiny = subject(lambda operation, need: Honest(need, "cpu"), effort=Effort.tiny(), sample=FEW_DTYPES)
    found = one_line(tiny, "threads")
    assert (found.status, found.detail) == (
        Status.NOT_RUN,
        "needs compiled kernels, found an effort for interpreted ones",
    )


@pytest.mark.slow
def test_what_a_call_raises_in_a_thread_is_the_failure():
    main = threading.main_thread()

    class Raises(Honest):
        def change(self, logits, metadata):
            if threading.current_thread() is not main:
                raise RuntimeError("no context in this thread")
            return logits, metadata

    found = one_line(sampler(Raises), "threads")
    assert (found.status, found.detail) == (
        Status.FAILED,
        "a call raised RuntimeError: no context in this thread",
    )


@pytest.mark.slow
def test_what_one_of_two_objects_raises_is_the_failure():
    main, callers = threading.main_thread(), []

    class RaisesInOneThread(Honest):
        def change(self, logits, metadata):
            thread = threading.current_thread()
            if thread is not main:
                callers.append(thread)
                if thread is callers[0]:
                    raise RuntimeError("no context in this thread")
            return logits, metadata

    line = one_line(sampler(RaisesInOneThread), "threads")
    assert (line.status, line.detail) == (
        Status.FAILED,
        "a call raised RuntimeError: no context in this thread",
    )


def test_cores_are_those_of_this_process():
    assert workers.usable_cores() == len(os.sched_getaffinity(0))
