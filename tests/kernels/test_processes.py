"""Processes with a shared cache compile the same kernel of triton-gumbel at once."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw_triton_gumbel import compilation
from tokendraw_triton_gumbel.compilation import hold_lock
from triton_stand_ins import ROOT

PROCESSES = 3


@pytest.fixture
def start(tmp_path):
    """Start a process that compiles once the file ``go`` exists; remaining processes end with the test."""
    started = []

    def one(seconds):
        path = os.pathsep.join(str(ROOT / each) for each in ("plugins/triton_gumbel/src", "tests/fakes"))
        process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("compiling_process.py")),
                str(tmp_path),
                str(seconds),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def ready(*processes):
    """Wait until the processes are about to compile."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"


def compilations(process):
    """Wait for the end of a process; return its number of compilations."""
    result, _ = process.communicate(timeout=60)
    return int(result)


@pytest.mark.slow
def test_a_single_process_compiles_and_the_rest_load_the_kernel(start, tmp_path):
    processes = [start(0.5) for _ in range(PROCESSES)]
    ready(*processes)
    (tmp_path / "go").touch()
    assert sum(compilations(process) for process in processes) == 1


@pytest.mark.slow
def test_where_nothing_can_be_locked_all_compile(start, tmp_path):
    (tmp_path / "locks").touch()  # no folder
    processes = [start(0.5) for _ in range(PROCESSES)]
    ready(*processes)
    (tmp_path / "go").touch()
    assert [compilations(process) for process in processes] == [1] * PROCESSES


@pytest.mark.slow
def test_a_process_killed_during_a_compilation_blocks_no_process(start, tmp_path):
    (tmp_path / "go").touch()
    first = start(600)
    ready(first)
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    second = start(0.01)
    ready(second)
    first.kill()
    assert compilations(second) == 1


def test_later_compilations_wait_for_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "_folder", lambda: tmp_path)
    begun, order = threading.Event(), []

    def first():
        with hold_lock("a kernel"):
            begun.set()
            time.sleep(0.2)
            order.append("first")

    def other():
        begun.wait(timeout=60)
        with hold_lock("a kernel"):
            order.append("other")

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(each) for each in (first, other, other)]:
            done.result(timeout=60)
    assert order == ["first", "other", "other"]


def test_a_wait_for_a_lock_ends_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "_folder", lambda: tmp_path)
    monkeypatch.setattr(compilation, "MAX_WAIT_SECONDS", 0.05)
    with hold_lock("a kernel"), hold_lock("another"):
        with hold_lock("a kernel"):  # held by somebody else, as far as it knows
            pass
        with hold_lock("a kernel"):
            pass


def test_a_compilation_that_fails_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "_folder", lambda: tmp_path)
    monkeypatch.setattr(compilation, "MAX_WAIT_SECONDS", 600.0)
    with pytest.raises(RuntimeError, match="ptxas"), hold_lock("a kernel"):
        raise RuntimeError("ptxas is missing")
    with hold_lock("a kernel"):
        pass
