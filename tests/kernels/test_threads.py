"""Threads compile the same kernels of triton-gumbel at once, with kernels whose compilation takes a while."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_triton_gumbel.compilation import make_once
from tokendraw_triton_gumbel.sampler import TritonGumbelSampler
from triton_stand_ins import compilations

THREADS, ROWS, V = 8, 4, 2000
EVERYTHING = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1, logprobs=2)
ONCE = {"tile_statistics": 1, "draw_rows": 1, "draw_large_sets": 1, "row_logprobs": 1, "count_ranks": 1}


def together(act):
    """Call ``act(i)`` in all threads at once; return each result or exception."""
    barrier = threading.Barrier(THREADS)

    def run(i):
        barrier.wait(timeout=60)
        try:
            return act(i)
        except RuntimeError as error:
            return error

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
    one = TritonGumbelSampler(torch.device("cpu"), Need())
    result = together(lambda i: draw(one if shared else TritonGumbelSampler(torch.device("cpu"), Need())))
    assert result == [None] * THREADS
    assert compilations(kernels) == {name: ONCE.get(name, 0) for name in kernels}
    assert {name: len(kernel.launches) for name, kernel in kernels.items()} == {
        name: THREADS * ONCE.get(name, 0) for name in kernels
    }


def test_threads_waiting_for_a_failed_compilation_compile_anew(kernels):
    slow(kernels, 0.02)
    kernels["draw_rows"].error = RuntimeError("ptxas is missing")
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    result = together(lambda i: draw(sampler))
    assert [str(error) for error in result] == ["ptxas is missing"] * THREADS
    assert len(kernels["draw_rows"].compilations) == THREADS
    kernels["draw_rows"].error = None
    draw(sampler)
    assert len(kernels["draw_rows"].compilations) == THREADS + 1
    assert len(kernels["tile_statistics"].compilations) == 1


def test_the_kernels_of_a_call_are_compiled_side_by_side(kernels, monkeypatch):
    """Each compilation waits until all have begun: in sequence, they would wait forever."""
    monkeypatch.setattr("tokendraw_triton_gumbel.compilation._MAX_COMPILERS", 8)
    monkeypatch.setattr("tokendraw_triton_gumbel.compilation._compiler_slots", threading.BoundedSemaphore(8))
    begun = threading.Barrier(3, timeout=60)
    for kernel in kernels.values():
        kernel.begin = begun.wait
    draw(TritonGumbelSampler(torch.device("cpu"), Need()), SamplingParams(temperature=0.8, top_k=50, seed=1))
    assert sum(compilations(kernels).values()) == 3


def test_no_more_kernels_than_there_are_compilers_are_compiled_at_once(kernels, monkeypatch):
    compilers, running, most = 2, [], []
    monkeypatch.setattr(
        "tokendraw_triton_gumbel.compilation._compiler_slots", threading.BoundedSemaphore(compilers)
    )
    slow(kernels)
    for kernel in kernels.values():
        kernel.begin = lambda: running.append(1) or most.append(len(running))
        kernel.end = running.pop
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    requests = [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(logprobs=2), EVERYTHING]
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


def test_compiled_kernels_are_found_without_a_lock(kernels, monkeypatch):
    sampler = TritonGumbelSampler(torch.device("cpu"), Need())
    draw(sampler)

    def refuse():
        raise AssertionError("a lock was asked for")

    monkeypatch.setattr(threading, "Lock", refuse)
    monkeypatch.setattr("tokendraw_triton_gumbel.compilation._locks", None)
    draw(sampler)
    draw(TritonGumbelSampler(torch.device("cpu"), Need()))
