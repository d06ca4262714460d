"""Makes the calls of a warmup, so that no request waits for a kernel to be compiled or loaded.

An operation makes up the calls, in groups.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from tokendraw._torch.tensors import is_capturing
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.proof import random_state_kept
from tokendraw.calls.call import Call
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.selection import Selection
from tokendraw.errors.exceptions import InvalidInputError

_log = logging.getLogger("tokendraw")


class CallGroup(NamedTuple):
    """Calls of a warmup. Each is made up when the calls before it are in flight, or over if not ``in_parallel``."""

    title: str
    """Text that is shown beside the count of calls."""
    calls: Iterable[Call]
    total: int | None
    """Number of the calls; None if it is not known yet."""
    in_parallel: bool = True


CallGroups: TypeAlias = Callable[[Selection, torch.device], Iterable[CallGroup]]
"""Makes up calls of every kind for the selected backends on a device, from checked arguments."""
ShowCount: TypeAlias = Callable[[str, int | None], Callable[[], object]]
"""Shows a title beside a count of calls with a total, None if unknown; returns the function that adds one."""


def warm_up(
    negotiator: Negotiator, warmups: Sequence[tuple[Operation, CallGroups]], *, progress: bool | None
) -> float:
    """Make the calls of each warmup, and restore torch's random state and the counted rows.

    :param negotiator: that of the loaded object.
    :param progress: whether a line on stderr shows how far it is; None: if stderr is a terminal.
    :returns: the seconds until the device was done; 0.0 on a CPU, where there is nothing to compile.
    :raises InvalidInputError: a CUDA graph is being captured.
    :raises SamplerUnavailableError: no backend serves an operation, or the plainest call of it.
    """
    if is_capturing():
        raise InvalidInputError(
            "'warmup' needs a stream that captures no CUDA graph, found one that does: its calls would become "
            "part of the graph. Call it before the capture."
        )
    start = time.perf_counter()
    for operation, _ in warmups:
        negotiator.select(operation)
    device = torch.empty(0, device=negotiator.device, dtype=torch.float32).device  # with its index
    if not max_calls_in_flight(device):
        _log.info("warmup calls nothing: on %s there is nothing to compile", device)
        return 0.0
    rows = negotiator.stats()
    with random_state_kept(device), torch.no_grad(), _progress_line(progress) as show:
        for operation, groups in warmups:
            selection = None
            while selection is not negotiator.select(operation):  # a successor starts from the beginning
                selection = negotiator.select(operation)
                for group in groups(selection, device):
                    _make(negotiator, operation, group, device, show(group.title, group.total))
                    if selection is not negotiator.select(operation):
                        break
    negotiator.restore_stats(rows)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start


def max_calls_in_flight(device: torch.device) -> int:
    """Return the limit of parallel calls; 0 on a CPU, where samplers have nothing to compile or load.

    Most calls wait for a kernel that another one compiles, so the limit is far above the number of cores. Threads that
    parse source at once, as Triton does, make Python 3.11 raise.
    """
    if device.type == "cpu":
        return 0
    return 64 if sys.hexversion >= 0x030C0000 else 1


def _make(
    negotiator: Negotiator,
    operation: Operation,
    group: CallGroup,
    device: torch.device,
    count_one: Callable[[], object],
) -> None:
    """Make calls in several threads, for most time goes to compilers, until the selection changes.

    The first call is made alone: a backend builds some things once.
    """
    most = max_calls_in_flight(device) if group.in_parallel else 1
    stream = None if device.type == "cpu" else torch.accelerator.current_stream(device)
    selection, pending = negotiator.select(operation), deque[Future[Any]]()

    def wait_until(in_flight: int) -> None:
        while len(pending) > in_flight:
            pending.popleft().result()
            count_one()

    with ThreadPoolExecutor(most, initializer=_begin_thread, initargs=(stream,)) as pool:
        for i, call in enumerate(group.calls):
            pending.append(pool.submit(copy_context().run, dispatch, negotiator, operation, call))
            wait_until(most - 1 if i else 0)
            if negotiator.select(operation) is not selection:
                break
        wait_until(0)


def _begin_thread(stream: torch.Stream | None) -> None:
    """Launch in the stream of the warmup's caller, from a new thread."""
    torch.set_grad_enabled(False)
    if stream is not None:
        torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def _progress_line(is_shown: bool | None) -> Iterator[ShowCount]:
    """Show a line on stderr that is erased at the end; None: if stderr is a terminal."""
    if not (sys.stderr.isatty() if is_shown is None else is_shown):
        yield lambda title, total: lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("tokendraw warms up: {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as line:
        yield lambda title, total: partial(line.advance, line.add_task(title, total=total))
