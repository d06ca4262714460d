"""``tokendraw check --jobs``: several processes, a dying process, and Ctrl-C during the work."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import isolation
import tokendraw_testing
from command_line import call
from fake_dists import deadly, fake_dists
from tokendraw_testing import Report

TWO = ("--only", "process edits", "--only", "process unassigned rows")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install(**options)``: a dying plugin, also for child processes."""
    with fake_dists(tmp_path, monkeypatch) as dists:

        def install(**options):
            dists.add_plugin("acme", deadly(in_process="logits.shape[1] == 300", **options))
            monkeypatch.setenv("PYTHONPATH", str(dists.folders[0]), prepend=os.pathsep)

        yield install


@pytest.mark.parametrize(("given", "jobs"), [([], 2), (["--jobs", "5"], 5), (["--jobs", "1"], 1)])
def test_the_number_of_processes_reaches_the_kit_and_is_that_of_the_cores(given, jobs, monkeypatch):
    asked = []

    def run(subject, *, jobs, **rest):
        asked.append(jobs)
        return Report(
            sampler="native", device="cpu", quick=True, seed=0, false_alarm=1e-6, lines=(), jobs=jobs
        )

    monkeypatch.setattr(tokendraw_testing, "run", run)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    call("check", "native", "--device", "cpu", *given)
    assert asked == [jobs]


def command(*arguments):
    return [sys.executable, "-m", "tokendraw", "check", "acme", "--device", "cpu", "--quick", *arguments]


FORKING = """
import multiprocessing, runpy, sys
from tokendraw_testing.kit import workers

workers._SPAWNING = multiprocessing.get_context("fork")
"""
"""The kit's processes are forks of the command's, which has imported torch."""


@pytest.mark.slow
def test_a_sampler_that_ends_its_process_is_red_and_spoils_no_json(install):
    install(death="print('to stdout', flush=True); os.write(1, b'again'); os._exit(3)")
    _, _, module, *arguments = command(*TWO, "--jobs", "2", "--json")
    run = f"sys.argv = {[module, *arguments]}\nrunpy.run_module({module!r}, run_name='__main__')"
    result = isolation.run_forked(f"{FORKING}\n{run}")
    found = json.loads(result.stdout)
    assert [(line["name"], line["detail"]) for line in found["lines"]] == [
        ("process edits", "a call ended the process with exit code 3"),
        ("process unassigned rows", "a call ended the process with exit code 3"),
    ]
    assert result.returncode == 1
    assert result.stderr.count("to stdout") == 2


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
