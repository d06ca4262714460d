"""Compilations of triton-gumbel's kernels at once: in threads of a process, and in processes with a shared cache."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel import compilation
from tokendraw_triton_gumbel.compilation import hold_lock, make_once
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import ROOT, compilations

THREADS, ROWS, V = 8, 4, 2000
EVERYTHING = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1, logprobs=2)
ONCE = {"tile_statistics": 1, "draw_rows": 1, "draw_large_sets": 1, "row_logprobs": 1, "count_ranks": 1}


# Threads, with kernels whose compilation takes a while.


def here():
    return TritonGumbelSampler(torch.device("cpu"), Need())


def together(act):
    """Call ``act(i)`` in all threads at once; return each result or exception."""
    barrier = threading.Barrier(THREADS)

    def run(i):
        barrier.wait(timeout=60)
        try:
            return act(i)
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS), timeout=60))


def draw(sampler, params=EVERYTHING):
    metadata = SamplingMetadata.from_params([params] * ROWS, positions=range(ROWS))
    sampler.sample(torch.zeros(ROWS, V), metadata)


def slow(kernels, seconds=0.1):
    for kernel in kernels.values():
        kernel.seconds = seconds


@pytest.mark.parametrize("shared", [True, False], ids=["of one sampler", "of samplers of their own"])
@pytest.mark.fast_first
def test_threads_compile_each_kernel_once(kernels, shared):
    slow(kernels)
    one = here()
    assert together(lambda i: draw(one if shared else here())) == [None] * THREADS
    assert compilations(kernels) == {name: ONCE.get(name, 0) for name in kernels}
    launches = {name: len(kernel.launches) for name, kernel in kernels.items()}
    assert launches == {name: THREADS * ONCE.get(name, 0) for name in kernels}


def test_threads_waiting_for_a_failed_compilation_compile_anew(kernels):
    slow(kernels, 0.02)
    kernels["draw_rows"].error = RuntimeError("ptxas is missing")
    sampler = here()
    assert together(lambda i: draw(sampler)) == ["ptxas is missing"] * THREADS
    assert compilations(kernels)["draw_rows"] == THREADS
    kernels["draw_rows"].error = None
    draw(sampler)
    assert compilations(kernels)["draw_rows"] == THREADS + 1
    assert compilations(kernels)["tile_statistics"] == 1


def test_the_kernels_of_a_call_compile_side_by_side_as_there_are_compilers(kernels, monkeypatch):
    """Each compilation of the first call waits until all have begun: in sequence, they would wait forever."""
    monkeypatch.setattr(compilation, "_MAX_COMPILERS", 8)
    monkeypatch.setattr(compilation, "_compiler_slots", threading.BoundedSemaphore(8))
    begun = threading.Barrier(3, timeout=60)
    for kernel in kernels.values():
        kernel.begin = begun.wait
    draw(here(), SamplingParams(temperature=0.8, top_k=50, seed=1))
    assert sum(compilations(kernels).values()) == 3
    compilers, running, most = 2, [], []
    monkeypatch.setattr(compilation, "_compiler_slots", threading.BoundedSemaphore(compilers))
    slow(kernels)
    for kernel in kernels.values():
        kernel.begin = lambda: running.append(1) or most.append(len(running))
        kernel.end = running.pop
    sampler = here()
    requests = [SamplingParams(), SamplingParams(filters={"eta_cutoff": 0.1}), SamplingParams(logprobs=2)]
    together(lambda i: draw(sampler, requests[i % len(requests)]))
    assert max(most) == compilers


def test_a_different_kernel_does_not_wait():
    begun, end = threading.Event(), threading.Event()

    def make():
        begun.set()
        assert end.wait(timeout=60)
        return "slow"

    with ThreadPoolExecutor(2) as pool:
        compiling = pool.submit(make_once, "the slow one", make)
        assert begun.wait(timeout=60)
        assert make_once("the other one", lambda: "quick") == "quick"
        waiting = pool.submit(make_once, "the slow one", lambda: "again")
        end.set()
        assert compiling.result(timeout=60) == waiting.result(timeout=60) == "slow"


# Processes.


@pytest.fixture
def start(tmp_path):
    """Start a process that compiles once the file ``go`` exists; remaining processes end with the test."""
    started = []

    def one(seconds):
        path = os.pathsep.join(str(ROOT / each) for each in ("plugins/triton_gumbel/src", "tests/fakes"))
        script = str(Path(__file__).with_name("compiling_process.py"))
        process = subprocess.Popen(
            [sys.executable, script, str(tmp_path), str(seconds)],
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


def compilations_of(process):
    """Wait for the end of a process; return its number of compilations."""
    result, _ = process.communicate(timeout=60)
    return int(result)


@pytest.mark.slow
@pytest.mark.parametrize(("can_lock", "number"), [(True, 1), (False, 3)])
def test_a_single_process_compiles_and_where_nothing_can_be_locked_all_do(start, tmp_path, can_lock, number):
    if not can_lock:
        (tmp_path / "locks").touch()  # no folder
    processes = [start(0.5) for _ in range(3)]
    ready(*processes)
    (tmp_path / "go").touch()
    assert sum(map(compilations_of, processes)) == number


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
    assert compilations_of(second) == 1


def test_later_compilations_wait_for_the_first_but_for_no_failed_one(tmp_path, monkeypatch):
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
    with pytest.raises(RuntimeError, match="ptxas"), hold_lock("a kernel"):
        raise RuntimeError("ptxas is missing")
    with hold_lock("a kernel"):
        pass


def test_a_wait_for_a_lock_ends_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "_folder", lambda: tmp_path)
    monkeypatch.setattr(compilation, "MAX_WAIT_SECONDS", 0.05)
    with hold_lock("a kernel"), hold_lock("another"):
        with hold_lock("a kernel"):  # held by somebody else, as far as it knows
            pass
        with hold_lock("a kernel"):
            pass
