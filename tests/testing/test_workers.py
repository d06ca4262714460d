"""Lines and cases in several processes: equal results, and the outcome of a dying process."""

import itertools
import os
import re
import time
from dataclasses import replace

import pytest

from fake_dists import deadly
from tokendraw.plugin import Capabilities
from tokendraw_testing import Line, Report, Status, Subject, run
from tokendraw_testing.kit import workers
from tokendraw_testing.kit.run import fuzz

LINES = ["output", "seeds at the edges", "torch.manual_seed", "process edits", "process inputs unmodified"]


@pytest.fixture
def install(dists):
    """``install(**options)`` makes a subject of a deadly plugin."""

    def install(**options):
        dists.add_plugin("acme", deadly(**options))
        return Subject.installed("acme", device="cpu", quick=True, seed=4)

    return install


def without_times(report: Report):
    return [replace(line, seconds=0.0) for line in report.lines]


@pytest.mark.slow
def test_two_processes_give_the_lines_of_a_single_process_in_registry_order(install):
    subject = install()
    begun: list[str] = []
    ended: list[Line] = []
    alone = run(subject, only=LINES)
    report = run(
        subject, only=LINES, jobs=2, starting=lambda prop: begun.append(prop.name), finished=ended.append
    )
    assert without_times(report) == without_times(alone)
    assert [line.name for line in report.lines] == LINES
    assert begun == LINES
    assert sorted(line.name for line in ended) == sorted(LINES)
    assert (report.jobs, alone.jobs) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_starts")
@pytest.mark.parametrize(
    ("death", "told"),
    [("os._exit(3)", "with exit code 3"), ("os.kill(os.getpid(), signal.SIGKILL)", "by signal 9, Killed")],
)
def test_a_dying_process_turns_the_current_line_red_alone(install, death, told):
    subject = install(in_process="slots.facts.any_bias and logits.shape[1] == 300", death=death)
    report = run(
        subject, operation="process_logits", only=["process edits", "process inputs unmodified"], jobs=2
    )
    result = {line.name: (line.status, line.detail) for line in report.lines}
    assert result["process edits"] == (Status.FAILED, f"a call ended the process {told}")
    assert result["process inputs unmodified"][0] is Status.PASSED


@pytest.mark.slow
def test_a_process_in_which_the_sampler_cannot_be_found_gives_the_reason(install, monkeypatch):
    subject = install()
    monkeypatch.setenv("TOKENDRAW_DISABLE", "acme")
    report = run(subject, only=["process edits", "process inputs unmodified"], jobs=2)
    (detail,) = {line.detail for line in report.lines}
    assert detail.startswith("a call raised SamplerUnavailableError: 'acme' cannot be checked on cpu: ")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_starts")
def test_a_case_with_a_dying_process_is_a_finding_and_further_cases_follow(install, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # a second for each case
    subject = install(in_process="logits.shape[1] == 300")
    report = fuzz(subject, 8, operation="process_logits", jobs=2)
    (finding,) = report.failed
    (good,) = report.ended(Status.PASSED)
    found, _, others = finding.detail.partition("; ")
    assert found == "a call ended the process with exit code 3"
    counts = [int(re.match(r"\d*", words)[0] or 0) for words in (good.detail, others)]
    assert 6 <= sum(counts) + 1 <= 8


def never(subject, task):
    raise AssertionError("no process starts")


def test_a_subject_without_an_installation_is_checked_in_a_single_process():
    subject = Subject(
        "acme", capabilities={"sample": Capabilities()}, device="cpu", build=lambda *requested: None
    )
    assert workers.usual_jobs(subject) == 1


def test_an_installed_sampler_on_a_cpu_gets_the_cores_of_this_process(install, monkeypatch):
    subject = install()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 3}, raising=False)
    assert workers.usual_jobs(subject) == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(96)), raising=False)
    assert workers.usual_jobs(subject) == workers.MOST_JOBS
    monkeypatch.setattr(subject, "device", type("Device", (), {"type": "cuda"}))
    assert workers.usual_jobs(subject) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("quick_starts")
def test_processes_that_cannot_start_cost_a_task_each(install, monkeypatch):
    monkeypatch.setattr(workers, "_serve", os._exit)
    results = list(workers.results(install(), never, ["one", "two", "three"], 2))
    assert [task for task, _ in results] == ["one", "two", "three"]
    assert {line.detail.partition(" with")[0] for _, line in results} == {"a call ended the process"}
