"""native on a CPU: threads that share a batch's rows, what a small batch leaves alone, other ways to a result."""

import _thread
import sys
import threading
import time
from dataclasses import fields, replace
from functools import partial

import pytest
import torch

import isolation
from tokendraw import Drafts, SamplingMetadata, SamplingParams, load_sampler
from tokendraw._torch.threads import _setters
from tokendraw.row_parameters import RowParameters
from tokendraw_native import row_stats, row_threads, search
from tokendraw_native.row_threads import CHUNK_LOGITS, map_steps, share_threads

ROWS, VOCAB_SIZE = 64, 40_000
"""Five chunks of statistics, two of largest values."""
CPU = torch.device("cpu")
REQUESTS = {
    "none": SamplingParams(temperature=0.8),
    "top-k": SamplingParams(temperature=0.8, top_k=50),
    "top-k and top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
    "large top-k": SamplingParams(top_k=5000),
    "min-p": SamplingParams(temperature=1.3, min_p=0.05),
    "greedy": SamplingParams(temperature=0.0),
}


@pytest.fixture(autouse=True)
def threads():
    """Restore torch's number of threads after each test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def sampler():
    return load_sampler("native", device="cpu")


# The same results with any number of threads


def logits_of(dtype=torch.float32):
    logits = 3 * torch.randn(ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    logits[5, 17] = logits[33, 0] = torch.nan
    logits[40] = -torch.inf
    logits[50, 3:9] = torch.inf
    return logits.to(dtype)


@pytest.mark.parametrize("start", ["refused", "late"])
def test_helpers_that_cannot_start_or_get_no_turn_hold_nothing_up(sampler, monkeypatch, start):
    def start_new_thread(function, arguments):
        if start == "refused":
            raise RuntimeError("can't start new thread")

    metadata = SamplingMetadata.from_params(
        [SamplingParams(seed=row) for row in range(ROWS)], positions=range(ROWS)
    )
    torch.set_num_threads(1)
    logits = logits_of()
    alone = sampler.sample(logits, metadata).token_ids
    torch.set_num_threads(4)
    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)
    assert torch.equal(sampler.sample(logits, metadata).token_ids, alone)


def shared(compute, chunks=8):
    """Compute chunks of a row on two threads."""
    torch.set_num_threads(2)
    with share_threads(torch.empty(chunks, CHUNK_LOGITS)):
        return map_steps(compute, chunks, 1, CPU)


def test_the_error_of_a_chunk_reaches_the_caller_once_and_leaves_the_thread_counts():
    seen, kept = [], []

    def compute(rows, buffers):
        seen.append(rows.start)
        kept.append(buffers)
        raise ValueError(f"row {rows.start}")

    with pytest.raises(ValueError, match=r"^row [01]$"):
        shared(compute, 64)
    assert len(seen) <= 2
    torch.set_num_threads(1)
    for _ in range(2):
        with share_threads(torch.empty(2, CHUNK_LOGITS)), pytest.raises(ValueError, match=r"^row 0$"):
            map_steps(compute, 2, 1, CPU)
    assert kept[-2] is not kept[-1]  # buffers of a failed chunk are left to no other call
    assert shared(lambda rows, buffers: rows.start) == [*range(8)]
    _, set_mkl = _setters()
    set_mkl(3)
    with pytest.raises(ZeroDivisionError), share_threads(torch.empty(2, CHUNK_LOGITS)):
        1 / 0  # noqa: B018
    assert (torch.get_num_threads(), row_threads._thread_state.threads) == (2, 1)
    if set_mkl is not int:
        assert set_mkl(0) == 3


def both_threads(state):
    """Collect the results of ``state`` on the calling thread and on a helper, synchronized by a barrier."""
    barrier, found = threading.Barrier(2, timeout=20), []

    def compute(rows, buffers):
        barrier.wait()
        found.append((threading.get_ident(), state()))

    shared(compute, 2)
    assert len({thread for thread, _ in found}) == 2
    return [value for _, value in found]


def test_helpers_compute_alone_in_the_modes_of_the_caller_and_beside_other_threads():
    assert both_threads(torch.get_num_threads) == [1, 1]
    assert both_threads(torch.is_grad_enabled) == [True, True]
    with torch.no_grad():
        assert both_threads(torch.is_grad_enabled) == [False, False]
    with torch.inference_mode():
        assert both_threads(torch.is_inference_mode_enabled) == [True, True]
    others = []

    def start_another():
        thread = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    both_threads(start_another)
    assert others == [2, 2]  # a thread that starts beside a call computes with the number of the process


def test_a_caller_that_waits_for_a_helper_sleeps():
    caller, waited = threading.get_ident(), []
    barrier = threading.Barrier(2, timeout=20)

    def compute(rows, buffers):
        barrier.wait()
        if threading.get_ident() != caller:
            before = time.process_time()
            time.sleep(0.3)
            waited.append(time.process_time() - before)

    shared(compute, 2)
    assert waited[0] < 0.1


# A small batch


LITTLE = 0.001
"""Seconds: what else wakes in a test process takes less, and a worker of OpenMP that is given anything more."""


def worked(call, times=1):
    """Return the CPU seconds of this process's other threads during calls, once all of them rest."""

    def workers():
        return time.process_time() - time.thread_time()

    before = -1.0
    while workers() - before > LITTLE / 10:  # idle threads of OpenMP spin for a while
        before = workers()
        threading.Event().wait(0.05)
    for _ in range(times):
        call()
    return workers() - before


def of_rows(request, rows, size):
    logits = 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(rows))
    params = [replace(request, seed=row) for row in range(rows)]
    return logits, SamplingMetadata.from_params(params, positions=range(rows))


def test_a_small_batch_is_drawn_by_the_calling_thread_and_a_large_one_is_shared(sampler):
    torch.set_num_threads(2)
    for name in ("greedy", "none", "top-k and top-p"):
        for rows, size in ((1, 151_936), (16, 32_000)):
            assert worked(partial(sampler.sample, *of_rows(REQUESTS[name], rows, size)), 5) < LITTLE
    logits, asking = of_rows(SamplingParams(logprobs=3), 3, 100_000)
    one = SamplingMetadata.from_params([SamplingParams(seed=1)], positions=[5])
    verify = partial(sampler.verify, logits, Drafts.from_counts(torch.tensor([1, 2]), [2]), one)
    verify()  # who verifies is negotiated now
    for call in (partial(sampler.sample, logits, asking), partial(sampler.draft, logits[:1], one), verify):
        assert worked(call) < LITTLE
    assert torch.get_num_threads() == 2
    large = partial(sampler.sample, *of_rows(REQUESTS["none"], 16, 151_936))
    assert any(
        worked(large) > LITTLE for _ in range(20)
    )  # on a busy machine a worker may start when all is done


# Other ways to a result


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "torch"])
def test_rows_are_sorted_by_value_with_and_without_numpy(monkeypatch, numpy):
    monkeypatch.setattr(search, "numpy_is_usable", lambda: numpy)
    x = torch.randn(5, 1025, generator=torch.Generator().manual_seed(2)).mul_(20).round_()
    x[0, :4] = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0])
    order = search.descending_order(x)
    assert torch.equal(x.gather(-1, order), x.sort(-1, descending=True).values)
    assert torch.equal(order.sort(-1).values, torch.arange(1025).expand(5, -1))


# Processes


IN_A_PROCESS = """
import atexit, os, time, torch, tokendraw
from tokendraw import SamplingMetadata, SamplingParams
torch.set_num_threads(2)
sampler = tokendraw.load_sampler("native", device="cpu")
logits = torch.randn(64, 40_000, generator=torch.Generator().manual_seed(1))
metadata = SamplingMetadata.from_params([SamplingParams(top_p=0.9, seed=1)] * 64, positions=range(64))
expected = sampler.sample(logits, metadata).token_ids
def same():
    assert torch.equal(sampler.sample(logits, metadata).token_ids, expected)
"""
CHILDREN = """
time.sleep(0.5)
import threading
assert threading.active_count() == 1
before = len(os.listdir("/proc/self/task"))
same()
time.sleep(0.5)
assert len(os.listdir("/proc/self/task")) == before
for _ in range(5):
    pid = os.fork()
    if not pid:
        same()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
atexit.register(lambda: (same(), print('drawn')))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, and counts threads in /proc")
def test_forked_children_draw_no_helper_stays_and_a_call_at_exit_draws():
    ran = isolation.run_forked(IN_A_PROCESS + CHILDREN)
    assert (ran.returncode, ran.stdout) == (0, "drawn\n"), ran.stderr


def test_any_parameter_but_the_usual_filters_keeps_rows_off_the_short_cut_of_the_largest():
    """A column that is added later reads whole rows until someone shows that the largest values decide it."""
    logits = torch.linspace(-4, 4, 5000).repeat(2, 1)
    params = RowParameters.of(SamplingMetadata.from_params([SamplingParams(top_k=5, top_p=0.9)] * 2), 2, CPU)
    assert row_stats.top_stats(logits, params) is not None
    usual = {"temperature", "inverse_temperature", "greedy", "top_k", "top_p", "min_p"}
    facts = {"max_top_k", "all_top_k", "filter_names"}
    names = {field.name for field in fields(params)} - usual - facts
    assert names > {"joint", "filters", "typical_p"}
    for name in names:
        assert row_stats.top_stats(logits, replace(params, **{name: torch.ones(2, 1)})) is None
