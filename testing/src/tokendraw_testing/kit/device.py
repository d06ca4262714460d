"""Examines calls on a CUDA device: waiting for the device, and replay from a CUDA graph."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import torch

from tokendraw_testing.kit.trial import Trial, Violation

LONGEST_CALL_SECONDS: Final = 0.02
"""Seconds that a call may take to return while the device is busy."""
_SLEEP_SECONDS: Final = 0.2
_MOST_READINGS: Final = 3
"""Readings of a call that takes long, at most."""

_Output = TypeVar("_Output")


@contextlib.contextmanager
def sync_is_an_error() -> Iterator[None]:
    """Make torch raise RuntimeError for each wait for the current CUDA device.

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
    """Measure the host time of ``work()`` behind a device that sleeps for 0.2 s; tell whether it slept on return.

    On a busy machine another program may hold up a call that waits for nothing, so one that takes long is measured
    again: the least time counts, or that of the call that waited.
    """
    for _ in range(3):
        work()  # compiles, and fills the cache of the allocator
    cycles = int(_SLEEP_SECONDS * _cycles_per_second())
    least = math.inf
    for _ in range(_MOST_READINGS):
        torch.cuda.synchronize()
        awake = torch.cuda.Event()
        torch.cuda._sleep(cycles)
        awake.record()
        start = time.perf_counter()
        work()
        seconds, is_asleep = time.perf_counter() - start, not awake.query()
        torch.cuda.synchronize()
        if not is_asleep:
            return seconds, False
        least = min(least, seconds)
        if least < LONGEST_CALL_SECONDS:
            break
    return least, True


def require_no_wait(trial: Trial, what: str, work: Callable[[], object]) -> None:
    """Require that ``work()`` returns without waiting for the device: by torch's own check and by a stopwatch.

    :param what: name of the call in the message.
    """
    work()
    try:
        with sync_is_an_error():
            work()
    except RuntimeError as error:
        raise Violation(f"{what} needs to return without waiting, found {error}") from error
    seconds, is_asleep = seconds_behind_a_busy_device(work)
    trial.require(
        is_asleep and seconds < LONGEST_CALL_SECONDS,
        f"{what} needs to return within {LONGEST_CALL_SECONDS:g} s of a busy device, found {seconds:.3f} s",
    )


def capture(work: Callable[[], _Output]) -> tuple[Callable[[], None], _Output]:
    """Capture a call in a CUDA graph.

    :returns: a replay that has ended when it returns, and the output that every replay writes anew.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = work()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay, output
