"""Makes the calls of a warmup, so that no request waits for a kernel to be compiled or loaded."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import torch

from tokendraw._torch.graphs import is_capturing
from tokendraw.backends.proof import random_state_kept
from tokendraw.calls.call import Call
from tokendraw.calls.calls import Calls
from tokendraw.calls.routing import Serving
from tokendraw.calls.session import Session
from tokendraw.calls.warming import Warmup
from tokendraw.errors.exceptions import InvalidInputError
from tokendraw.providers.progress import Track, progress_line

_CALLS_IN_FLIGHT = 64 if sys.hexversion >= 0x030C0000 else 1
"""Upper limit of calls in flight: most wait for a kernel that another call compiles, so far more than there are cores.

Threads that parse source at once, as Triton does, make Python 3.11 raise.
"""
_log = logging.getLogger("tokendraw")


def warm_up(session: Session, warmups: Sequence[tuple[Calls, Warmup]], *, progress: bool | None) -> float:
    """Make the calls of each warmup; torch's random state and the counted rows are left alone.

    :param progress: whether a line on stderr shows how far it is; None: if stderr is a terminal.
    :returns: the seconds until the device was done; 0.0 on a CPU, where there is nothing to compile.
    :raises InvalidInputError: a CUDA graph is being captured.
    :raises SamplerUnavailableError: nobody serves an operation, or the plainest call of it.
    """
    if is_capturing():
        raise InvalidInputError(
            "'warmup' needs a stream that captures no CUDA graph, found one that does: its calls would become "
            "part of the graph. Call it before the capture."
        )
    start = time.perf_counter()
    for calls, _ in warmups:
        calls.serving  # noqa: B018 (negotiates)
    device = torch.empty(0, device=session.device).device  # with its index
    if compiles_nothing(device):
        _log.info("warmup calls nothing: on %s there is nothing to compile", device)
        return 0.0
    drawn = session.counts.by_name()
    with random_state_kept(device), torch.no_grad(), progress_line(progress) as track:
        for calls, warmup in warmups:
            _make(calls, warmup, device, track)
    session.counts.restore(drawn)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start


def compiles_nothing(device: torch.device) -> bool:
    """Whether samplers have nothing to compile or load before their first call: those of CPUs do not."""
    return device.type == "cpu"


def _make(calls: Calls, warmup: Warmup, device: torch.device, track: Track) -> None:
    serving = None
    while serving is not calls.serving:  # a successor starts from the beginning
        serving = calls.serving
        for stage in warmup.stages(serving, device):
            done = track(stage.doing, stage.total)
            if not all(_make_group(calls, serving, group, device, done) for group in stage.groups):
                break


def _make_group(
    calls: Calls, serving: Serving, group: Iterable[Call], device: torch.device, done: Callable[[], None]
) -> bool:
    """Make calls in several threads, as their time goes to compilers; return whether the same providers serve still.

    The first one is made alone: what a provider builds once it then has.
    """
    with ThreadPoolExecutor(
        _at_once(device), initializer=_begin_thread, initargs=(_stream_of(device),)
    ) as pool:
        under_way: deque[Future[Any]] = deque()
        most = 1
        for call in group:
            under_way.append(pool.submit(copy_context().run, calls.make, call))
            while len(under_way) >= most:
                under_way.popleft().result()
                done()
            most = _at_once(device)
            if calls.serving is not serving:
                break
        for each in under_way:
            each.result()
            done()
    return calls.serving is serving


def _at_once(device: torch.device) -> int:
    """Return how many calls are made at once: on a CPU nothing compiles."""
    return 1 if device.type == "cpu" else _CALLS_IN_FLIGHT


def _begin_thread(stream: torch.Stream | None) -> None:
    """Have a thread launch where the caller of the warmup does."""
    torch.set_grad_enabled(False)
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _stream_of(device: torch.device) -> torch.Stream | None:
    return None if device.type == "cpu" else torch.accelerator.current_stream(device)
