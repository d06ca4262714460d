"""The cost of small batches on a CPU: operations, noise and threads. Other tests check the tokens."""

import threading
import time
from dataclasses import replace
from unittest import mock

import pytest
import torch

from cuda_batches import Operations
from tokendraw import Drafts, SamplingMetadata, SamplingParams, load_sampler, philox
from tokendraw._torch.threads import one_thread
from tokendraw_native.topk import argmax, topk

REQUESTS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(top_k=50),
    "top-k and top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
}


@pytest.fixture(scope="module")
def sampler():
    return load_sampler("native", device="cpu")


def batch(request, rows, size, seeded=True):
    params = [replace(REQUESTS[request], seed=row if seeded else None) for row in range(rows)]
    logits = 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(rows))
    return logits, SamplingMetadata.from_params(params, device="cpu", positions=list(range(rows)))


@pytest.mark.parametrize("size", [1000, 32_000])
@pytest.mark.parametrize(
    ("request_name", "most"), [("greedy", 20), ("plain", 95), ("top-k", 95), ("top-k and top-p", 115)]
)
def test_a_step_is_few_operations_of_torch(sampler, request_name, most, size):
    arguments = batch(request_name, 4, size)
    sampler.sample(*arguments)
    with Operations() as operations:
        sampler.sample(*arguments)
    assert operations.count <= most


@pytest.mark.parametrize(
    ("request_name", "size", "calls"),
    [
        ("greedy", 1000, 0),
        ("greedy", 32_000, 0),
        ("plain", 1000, 1),
        ("plain", 1024, 1),
        ("plain", 32_000, 2),  # which tokens need noise is known when the tile is
        ("top-k", 1000, 1),
        ("top-k", 32_000, 1),
        ("top-k and top-p", 151_936, 1),
    ],
)
def test_the_noise_of_both_levels_is_made_at_once_where_the_tokens_are_known(
    sampler, request_name, size, calls
):
    arguments = batch(request_name, 2, size)
    with mock.patch.object(philox, "gumbel", wraps=philox.gumbel) as gumbel:
        sampler.sample(*arguments)
    assert gumbel.call_count == calls


def test_greedy_batches_leave_the_random_state_alone(sampler):
    logits, metadata = batch("greedy", 3, 1000, seeded=False)
    before = torch.get_rng_state()
    sampler.sample(logits, metadata)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 100, 16_384, 16_385, 20_000, 151_936])
def test_the_largest_by_way_of_blocks_are_those_of_torch(size, dtype):
    generator = torch.Generator().manual_seed(size)
    for given in (
        torch.randn(3, size, generator=generator),
        torch.randint(0, 5, (3, size), generator=generator).float(),  # ties in every block
        torch.arange(3 * size).view(3, size).float(),  # all in the last blocks, and behind them
        torch.full((3, size), -torch.inf),
    ):
        x = given.to(dtype)
        assert torch.equal(argmax(x), x.argmax(-1))
        for n in (1, 2, 51, 1024):
            values, ids = topk(x, min(n, size))
            assert torch.equal(values, x.topk(min(n, size)).values)
            assert torch.equal(x.gather(-1, ids), values)
            assert all(len(set(row.tolist())) == len(row) for row in ids)


def test_nan_comes_first_among_the_largest():
    x = torch.randn(2, 20_000)
    x[0, 7] = x[1, -1] = torch.nan
    values, ids = topk(x, 3)
    assert values[:, 0].isnan().all()
    assert ids[:, 0].tolist() == [7, 19_999]


LITTLE = 0.001
"""Seconds: what else wakes in a test process takes less, and a worker of OpenMP that is given anything more."""


def workers():
    """Return the CPU seconds of this process's threads, without the calling thread."""
    return time.process_time() - time.thread_time()


def rest():
    """Wait for all other threads to rest: idle threads of OpenMP spin for a while."""
    before = -1.0
    while workers() - before > LITTLE / 10:
        before = workers()
        threading.Event().wait(0.05)


@pytest.fixture
def two_threads():
    """Torch computes with two threads, whatever the machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(("rows", "size"), [(1, 151_936), (16, 32_000)])
@pytest.mark.fast_first
def test_a_small_batch_is_drawn_by_the_calling_thread_alone(two_threads, sampler, request_name, rows, size):
    arguments = batch(request_name, rows, size)
    rest()
    before = workers()
    for _ in range(5):
        sampler.sample(*arguments)
    assert workers() - before < LITTLE
    assert torch.get_num_threads() == 2


def test_a_large_batch_is_shared_out(two_threads, sampler):
    """So the test above can fail."""
    arguments = batch("plain", 16, 151_936)

    def is_shared():
        rest()
        before = workers()
        sampler.sample(*arguments)
        return workers() - before > LITTLE

    assert any(is_shared() for _ in range(20))  # on a busy machine a worker may start when all is done


def test_a_small_batch_with_logprobs_and_one_of_drafts_stay_there_too(two_threads, sampler):
    logits, _ = batch("plain", 3, 100_000)
    logprobs = SamplingMetadata.from_params([SamplingParams(logprobs=3, seed=1)] * 3, positions=[1, 2, 3])
    one = SamplingMetadata.from_params([SamplingParams(seed=1)], positions=[5])
    drafts = Drafts.from_counts(torch.tensor([1, 2]), [2])
    sampler.verify(logits, drafts, one)  # who verifies is negotiated now
    rest()
    before = workers()
    sampler.sample(logits, logprobs)
    sampler.draft(logits[:1], one)
    sampler.verify(logits, drafts, one)
    assert workers() - before < LITTLE


def test_one_thread_is_about_the_calling_thread_alone(two_threads):
    found = []
    with one_thread():
        assert torch.get_num_threads() == 1
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert torch.get_num_threads() == 2
    assert found == [2]
