"""``tokendraw check``: screens, exit codes, and commands that repeat findings."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace

import importlib_metadata
import pytest

import tokendraw
import tokendraw_testing
from command_line import call, screen
from fake_dists import deadly, fake_dists, plugin
from tokendraw_testing import Line, Report, Status, properties
from tokendraw_testing.filter_check import line_names
from tokendraw_testing.kit.report import Place
from tokendraw_testing.kit.trial import MOST_CHECKS

HEADING = (
    f"native on cpu: tokendraw {tokendraw.__version__}, "
    f"tokendraw-native {importlib_metadata.version('tokendraw-native')}, "
    f"torch {importlib_metadata.version('torch')}\n\n"
)

SMALL = Place("sample", "float32", 1 << 10)
EXACT = Line(name="greedy rows", status=Status.PASSED, detail="5 vocabularies", about="Argmax.", seconds=0.25)
STATISTICAL = Line(
    name="top_p",
    status=Status.PASSED,
    detail="7 requests by draws, 667 kept sets in 8 families as processed_logprobs show them",
    about="Keeps the smallest set.",
    checks=14,
    draws=148_060,
    p_value=0.03412,
    worst="top_p = 0.1: token 6 drawn 1757 times, expected 1670.8",
    seconds=3.0,
    looked=frozenset({SMALL}),
)
REFUSED = Line(
    name="ranks", status=Status.REFUSED, detail="'native' cannot serve it: a long story", about="Ranks."
)
NOT_RUN = Line(
    name="sync-free", status=Status.NOT_RUN, detail="needs a CUDA device, found cpu", about="No waiting."
)
WRONG = Line(
    name="ties",
    status=Status.FAILED,
    detail="top_k = 3: token 8 [of 9] drawn 0 times, expected 250.0 (p = 1.0e-80, then 0.0e+00 in 40000 draws)",
    about="Keeps every token that is tied with the last kept one.",
    checks=1,
    draws=50_000,
    p_value=0.0,
    worst="top_k = 3: token 8 drawn 0 times, expected 250.0",
)
RAISED = Line(
    name="filter order joint",
    status=Status.FAILED,
    detail="a call raised RuntimeError: no kernel",
    about="Both filters count everything.",
    traceback='  File "/acme/sampler.py", line 31, in sample\n    return draw(logits)\n',
)
FUZZED = replace(
    RAISED, name="verify, case 40", about="", again=("--operation", "verify", "--fuzz-case", "0:40")
)
"""Raises at the same place."""


@pytest.fixture
def reports(monkeypatch):
    """``reports(*lines)``: the kit reports the lines whatever the arguments; returns the calls."""
    calls = []

    def find(*lines, places=()):
        def run(subject, *, only=None, jobs=1, starting=None, finished=None):
            calls.append((subject, only, jobs))
            print("the sampler is at work")
            return Report(
                sampler=subject.name,
                device=str(subject.device),
                quick=subject.effort.quick,
                seed=subject.seed,
                false_alarm=1e-6,
                lines=lines,
                places=places,
                jobs=jobs,
                elapsed=2.5,
            )

        monkeypatch.setattr(tokendraw_testing, "run", run)
        return calls

    return find


def check(*arguments):
    return call("check", "--device", "cpu", "--jobs", "1", *arguments)


def test_a_red_run_tells_what_was_needed_and_found_and_how_to_see_it_again(reports):
    lines = (EXACT, STATISTICAL, NOT_RUN, RAISED, WRONG, REFUSED, FUZZED)
    reports(*lines, places=(SMALL, SMALL._replace(up_to=None)))
    result = check("native", "--seed", "7", "--gumbel-dtype", "fp64")
    assert result.stdout == screen("a red run tells what was needed and found and how to see it again")
    assert (result.stderr, result.exit_code) == ("the sampler is at work\n", 1)


def test_nothing_to_check_is_no_success(reports):
    reports()
    result = check("native", "--only", "noise precision")
    assert result.stdout == HEADING + "Nothing was checked: native advertises none of it.\n"
    assert result.exit_code == 1


def test_the_options_reach_the_kit(reports):
    calls = reports(EXACT)
    check("native")
    check("native", "--operation", "verify")
    assert [only for _, only, _ in calls] == [
        tuple(prop.name for prop in listed) for listed in (properties(), properties("verify"))
    ]
    calls.clear()
    check("native", "--quick", "--seed", "3", "--only", "limits", "--only", "output")
    ((subject, only, _),) = calls
    assert (subject.name, str(subject.device), subject.effort.quick, subject.seed) == (
        "native",
        "cpu",
        True,
        3,
    )
    assert only == ("output", "limits")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            plugin("acme"),
            ("--operation", "verify"),
            "'acme' cannot be checked on cpu: needs the operation verify, found sample.",
        ),
        (
            plugin("acme", build="raise RuntimeError('no [kernels]')"),
            (),
            "'acme' needs to build and to pass its proof on cpu before it can be checked, found: "
            "tokendraw_build raised RuntimeError: no [kernels] (fake_acme.py:36). Mend the plugin.",
        ),
    ],
    ids=["another operation", "it does not build"],
)
def test_a_sampler_that_cannot_be_checked_gives_the_reason_once(dists, source, options, message):
    dists.add_plugin("acme", source)
    result = check("acme", *options)
    assert (result.stdout, result.stderr, result.exit_code) == ("", f"{message}\n", 1)


def test_the_list_has_a_line_for_each_property_of_samplers_or_of_a_filter():
    names = {prop.name: prop.about for prop in properties()}
    for command, wanted in (
        (("--list",), names),
        (("--filter", "p_less", "native", "--list"), line_names(["native"])),
    ):
        result = call("check", *command)
        width = max(map(len, wanted))
        assert result.stdout.splitlines() == [f"{name:{width}}  {about}" for name, about in wanted.items()]
        assert (result.stderr, result.exit_code) == ("", 0)


@pytest.mark.slow
def test_native_passes_the_quick_run_on_a_cpu():
    quick = ["check", "native", "--device", "cpu", "--quick", "--json"]
    result = subprocess.run(
        [sys.executable, "-m", "tokendraw", *quick], capture_output=True, encoding="utf-8", check=False
    )
    said = re.sub(r"(\d+ of \d+ lines after|loading ).*\n", "", result.stderr)
    assert (said, result.returncode) == ("", 0)
    lines = json.loads(result.stdout)["lines"]
    assert [line["name"] for line in lines] == [prop.name for prop in properties() if prop.name != "limits"]
    odd = {line["name"] for line in lines if line["status"] != "passed"}
    assert odd == {prop.name for prop in properties() if prop.needs_cuda}  # no errors, so they are not run
    assert 100 < sum(line["checks"] for line in lines) <= MOST_CHECKS  # what the false-alarm rate is for


# Several processes: one that dies, and Ctrl-C during the work.

TWO = ("--only", "process edits", "--only", "process crossing")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install(**options)``: a dying plugin, also for child processes."""
    with fake_dists(tmp_path, monkeypatch) as dists:

        def install(**options):
            dists.add_plugin("acme", deadly(in_process="logits.shape[1] == 300", **options))
            monkeypatch.setenv("PYTHONPATH", str(dists.folders[0]), prepend=os.pathsep)

        yield install


def command(*arguments):
    return [sys.executable, "-m", "tokendraw", "check", "acme", "--device", "cpu", "--quick", *arguments]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_an_interrupt_ends_all_processes_at_once(install, tmp_path):
    """A terminal interrupts every process of the group."""
    marks = tmp_path / "marks"
    marks.mkdir()
    install(death=f"open(f'{marks}/{{os.getpid()}}', 'w').close(); __import__('time').sleep(300)")
    process = subprocess.Popen(
        command(*TWO, "--jobs", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
        # A suite that was started in the background of a shell ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    deadline = time.monotonic() + 200
    while len(list(marks.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    said = re.sub(
        r"^0 of 2 lines after .*\n", "", stderr, flags=re.MULTILINE
    )  # every 30 s, on a busy machine
    assert (stdout, said, process.returncode) == ("", "Interrupted after 0 of 2 lines.\n\n", 130)
    for mark in marks.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.name), 0)


@pytest.mark.slow
def test_a_finding_is_repeated_by_its_command(tmp_path, monkeypatch):
    """A plugin that edits nothing at all at vocabularies of 300 ids, and cases without anything made up."""
    with fake_dists(tmp_path, monkeypatch) as dists:
        dists.add_plugin("acme", deadly(in_process="logits.shape[1] == 300", death="return logits"))
        result = check("acme", "--fuzz", "2", "--json", "--quick")
        assert result.exit_code == 1
        finding = failure(result)
        program, *arguments = shlex.split(finding["again"])
        assert program == "tokendraw"
        again = call(*arguments, "--json")
    assert again.exit_code == 1
    assert failure(again) == finding


def failure(result):
    """The first failed line of a run, without its time and the number of like ones."""
    line = next(line for line in json.loads(result.stdout)["lines"] if line["status"] == "failed")
    return {**line, "seconds": 0.0, "detail": line["detail"].partition("; ")[0]}


def test_kept_sets_are_counted_by_operation_and_way():
    result = call("check", "native", "--device", "cpu", "--kept-sets", "--fuzz-case", "0:1")
    assert result.exit_code == 0
    assert result.stdout.startswith(HEADING + "property ")
    row = r"^verify: p +passed +\d+ rows, 0 wrong, \d+ uncertain, worst mass 1 *$"
    assert re.search(row, result.stdout, re.MULTILINE)
