"""What commands say on stderr: how far long work in a pipe is, and with ``--verbose`` what plugins raised."""

import re
import signal
import time

import numpy as np
import pytest

import tokendraw_testing
from command_line import NATIVE_ON_CPU, call
from tokendraw.cli import terminal
from tokendraw_testing import Line, Report, Status, properties

LINE = Line(name="output", status=Status.PASSED, detail="5 shapes", seconds=1.0)


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(terminal, "SECONDS_PER_LINE", 0.4)


def slow_run(subject, *, only=None, jobs=1, starting=None, finished=None):
    first, second = properties("sample")[:2]
    starting(first)
    starting(second)
    time.sleep(0.6)
    finished(Line(name=first.name, status=Status.PASSED, detail=""))
    time.sleep(0.4)
    return Report(
        sampler="native", device="cpu", quick=True, seed=0, false_alarm=1e-6, lines=(LINE,), elapsed=1.0
    )


def check(*arguments):
    return call("check", "native", "--device", "cpu", "--jobs", "1", "--operation", "sample", *arguments)


def said(result):
    """The lines on stderr about the run, without the seconds."""
    lines = [re.sub(r" after \d+ s", "", line) for line in result.stderr.splitlines()]
    return [line for line in lines if not line.startswith("loading ")]


def test_check_says_which_lines_are_at_work_and_how_many_are_done(monkeypatch, often):
    monkeypatch.setattr(tokendraw_testing, "run", slow_run)
    total = sum(prop.advertised is None or bool(prop.refusal) for prop in properties("sample"))
    result = check()
    told = said(result)
    assert told[0].startswith("0 of ")
    assert told[0].endswith(" lines: output, limits")
    assert told[1].startswith("1 of ")
    assert told[1].endswith(" lines: limits")
    assert int(told[0].split()[2]) >= total
    assert result.stdout.startswith("native on cpu: ")
    assert result.exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_that_ends_a_run_loses_no_finished_line(monkeypatch, number, often):
    """Runners of jobs send SIGTERM at their limit of time."""
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(subject, *, only=None, jobs=1, starting=None, finished=None):
        for prop, status in zip(properties("sample")[:2], (Status.PASSED, Status.FAILED), strict=True):
            starting(prop)
            finished(Line(name=prop.name, status=status, detail="needs 5, found 4", about="Five."))
        signal.raise_signal(number)

    monkeypatch.setattr(tokendraw_testing, "run", interrupted)
    on_interrupt = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs ignore it
    try:
        result = check()
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
    assert signal.getsignal(signal.SIGTERM) is before
    said = [line for line in result.stderr.splitlines() if not line.startswith("loading native, ")]
    assert said[0].startswith("Interrupted after 2 of ")
    assert said[0].endswith(" lines, 1 passed, 1 failed.")
    assert said[1:3] == ["limits: needs 5, found 4", "demanded: Five."]
    assert result.exit_code == 130


def test_work_without_steps_says_what_it_is_and_for_how_long(capsys, often):
    with terminal.progress("loading acme"):
        time.sleep(1.1)
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.rpartition(",")[0] for line in told.err.splitlines()] == ["loading acme"] * 2


# ``--verbose``: tracebacks behind the reasons on stderr; without the option none.


@pytest.mark.parametrize(
    "command",
    [
        ["list"],
        ["show", "boom"],
        ["doctor", "--no-build"],
        ["resolve", "--device", "cpu"],
        ["check", "boom", "--device", "cpu"],
    ],
    ids=lambda c: c[0],
)
def test_a_plugin_that_fails_to_load_shows_where(dists, command):
    dists.add_plugin("boom", "def load():\n    raise RuntimeError('no kernels')\nload()")
    quiet = call(*command).stderr
    assert "Traceback" not in quiet
    stderr = call(*command, "--verbose").stderr
    assert stderr.count("Traceback") == 1
    assert stderr.endswith(f"\nRuntimeError: no kernels\n{quiet}")
    lines = stderr.splitlines()
    assert lines[:2] == ["loading 'fake_boom:plugin' failed", "Traceback (most recent call last):"]
    assert any(line.endswith('boom.py", line 2, in load') for line in lines)


def test_an_error_whose_cause_nobody_logged_shows_it(tmp_path):
    """A damaged file: the exception of the parser."""
    path = tmp_path / "cut.npy"
    np.save(path, np.zeros((2, 5), np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    words = ("sample", path, *NATIVE_ON_CPU)
    assert len(call(*words).stderr.splitlines()) == 1
    lines = call(*words, "-v").stderr.splitlines()
    assert lines[:2] == ["the cause:", "Traceback (most recent call last):"]
    assert lines[-2].startswith("ValueError: ")
    assert lines[-1] == call(*words).stderr.strip()
