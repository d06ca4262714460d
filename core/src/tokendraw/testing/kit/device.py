"""Calls on a CUDA device: none waits for it, and what a graph captured follows its inputs."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from tokendraw._exchange.capabilities import Need
from tokendraw._exchange.metadata import SamplingMetadata
from tokendraw._exchange.params import SamplingParams
from tokendraw.testing.kit.property import Ask, Properties
from tokendraw.testing.kit.requests import combinations, described, scalar_filters
from tokendraw.testing.kit.subject import Subject
from tokendraw.testing.kit.trial import Trial, Violation
from tokendraw.testing.logits_families import gaussian

properties = Properties()

LONGEST_CALL: Final = 0.02
"""Seconds that a call may take to return while the device is busy."""
_SLEEP: Final = 0.2
_ROWS, _SIZE = 64, 32_000


@contextlib.contextmanager
def sync_is_an_error() -> Iterator[None]:
    """Make torch raise RuntimeError where it would wait for the current CUDA device.

    It misses copies of large pageable memory, and kernels that wait by themselves: :func:`seconds_behind_a_busy_device`
    sees these.
    """
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@functools.cache
def _cycles_per_second() -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200_000_000)  # lets the clock rise
    start.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    torch.cuda.synchronize()
    return float(50_000_000 / (start.elapsed_time(end) / 1000))


def seconds_behind_a_busy_device(work: Callable[[], object]) -> tuple[float, bool]:
    """Host time of ``work()`` queued behind a device that sleeps for 0.2 s, and whether it still slept on return."""
    for _ in range(3):
        work()  # compiles, and fills the cache of the allocator
    cycles = int(_SLEEP * _cycles_per_second())
    torch.cuda.synchronize()
    awake = torch.cuda.Event()
    torch.cuda._sleep(cycles)
    awake.record()
    start = time.perf_counter()
    work()
    seconds, slept = time.perf_counter() - start, not awake.query()
    torch.cuda.synchronize()
    return seconds, slept


def require_no_wait(trial: Trial, what: str, work: Callable[[], object]) -> None:
    """Require that ``work()`` returns without waiting for the device: by torch's own check, and by a stopwatch.

    :param what: what it is, for the message.
    """
    work()
    try:
        with sync_is_an_error():
            work()
    except RuntimeError as error:
        raise Violation(f"{what} needs to return without waiting, found {error}") from error
    seconds, slept = seconds_behind_a_busy_device(work)
    trial.require(
        slept and seconds < LONGEST_CALL,
        f"{what} needs to return within {LONGEST_CALL:g} s of a busy device, found {seconds:.3f} s",
    )


def _batches(subject: Subject, trial: Trial) -> Iterator[tuple[str, torch.Tensor, SamplingMetadata]]:
    """A batch of every kind that the subject serves, on the device."""
    rng = trial.generator("rows")
    logits = torch.from_numpy(np.stack([gaussian(rng, _SIZE) for _ in range(_ROWS)])).to(subject.device)
    positions = torch.arange(_ROWS, device=subject.device)
    counter = subject.capabilities.seeding == "counter"
    requests = combinations(subject.capabilities, _SIZE)
    kinds = {described(p): [p] * _ROWS for p in requests[:: max(1, len(requests) // 8)]}
    if not scalar_filters(subject.capabilities):
        kinds["all kinds mixed"] = [requests[i % len(requests)] for i in range(_ROWS)]
    if subject.capabilities.logprobs_modes:
        kinds["five logprobs"] = [SamplingParams(logprobs=5)] * _ROWS
    for label, rows in kinds.items():
        params = [replace(p, seed=i) if counter and i % 2 else p for i, p in enumerate(rows)]
        yield label, logits, SamplingMetadata.from_params(params, device=subject.device, positions=positions)


@properties.advertised("sync-free", lambda c: c.sync_free, Ask(need=Need(sync_free=True)), needs_cuda=True)
def sync_free(subject: Subject, trial: Trial) -> str:
    """No call waits for the device: by torch's own check, and by a stopwatch behind a sleeping device."""
    looked = 0
    for label, logits, metadata in _batches(subject, trial):
        backend = subject.backend()

        def work(
            logits: torch.Tensor = logits,
            metadata: SamplingMetadata = metadata,
            sample: Callable[..., object] = backend.sample,
        ) -> None:
            sample(logits, metadata)

        require_no_wait(trial, f"{label}: a call", work)
        looked += 1
    return f"{looked} kinds of batches, 2 methods"


@properties.advertised(
    "graph capture", lambda c: c.graph_safe, Ask(need=Need(graph_safe=True)), needs_cuda=True
)
def graph_capture(subject: Subject, trial: Trial) -> str:
    """A captured call follows logits and positions that change in place, and draws anew at each replay."""
    looked = 0
    for label, given, metadata in _batches(subject, trial):
        logits = given.clone()
        backend = subject.backend()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                backend.sample(logits, metadata)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = backend.sample(logits, metadata)
        settled = torch.zeros(_ROWS, dtype=torch.bool)
        if subject.capabilities.seeding == "counter":
            settled[1::2] = True
        for step in (1, 2):
            logits.copy_(given.roll(step, 0))
            assert metadata.positions is not None
            metadata.positions.copy_(torch.arange(_ROWS) + 100 * step)
            expected = backend.sample(logits, metadata).token_ids.cpu()
            graph.replay()
            torch.cuda.synchronize()
            found = output.token_ids.cpu()
            trial.require(((found >= 0) & (found < _SIZE)).all(), f"{label}: ids need to lie in [0, {_SIZE})")
            trial.require(
                (found == expected)[settled].all(),
                f"{label}: a replay needs the tokens of a fresh call, found others",
            )
        looked += 1
    flat = torch.zeros(_ROWS, _SIZE, device=subject.device)
    plain = SamplingMetadata.from_params([SamplingParams()] * _ROWS, device=subject.device)
    graph = torch.cuda.CUDAGraph()
    subject.backend().sample(flat, plain)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        output = subject.backend().sample(flat, plain)
    replays = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        replays.append(output.token_ids.cpu())
    for left, right in ((0, 1), (1, 2), (0, 2)):
        again = int((replays[left] == replays[right]).sum())
        trial.require(again <= 3, f"replays need to draw anew, found {again} of {_ROWS} tokens again")
    return f"{looked} kinds of batches"
