"""Makes the calls of a warmup, so that no request waits for a kernel to be compiled or loaded.

An operation makes up the calls, in groups that are made side by side.
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

from tokendraw._torch.graphs import is_capturing
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.proof import random_state_kept
from tokendraw.calls.call import Call
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.selection import Selection
from tokendraw.errors.exceptions import InvalidInputError

_CALLS_IN_FLIGHT = 64 if sys.hexversion >= 0x030C0000 else 1
"""Upper limit of calls in flight: most wait for a kernel that another call compiles, so far more than there are cores.

Threads that parse source at once, as Triton does, make Python 3.11 raise.
"""
_log = logging.getLogger("tokendraw")


class CallGroups(NamedTuple):
    """Groups of calls for a warmup, made in sequence; the calls of a group run in parallel."""

    title: str
    """Text that is shown beside the count of calls."""
    groups: Iterable[Iterable[Call]]
    """The tensors that the calls of a group read stay unmodified until the next group is asked for."""
    total: int | None
    """Number of the calls; None if it is not known yet."""


Stages: TypeAlias = Callable[[Selection, torch.device], Iterable[CallGroups]]
"""Makes up calls of every kind for the selected backends on a device, from checked arguments."""
ShowCount: TypeAlias = Callable[[str, int | None], Callable[[], object]]
"""Shows a title beside a count of calls with a total, None if unknown; returns the function that adds one."""


def warm_up(
    negotiator: Negotiator, warmups: Sequence[tuple[Operation, Stages]], *, progress: bool | None
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
    device = torch.empty(0, device=negotiator.device).device  # with its index
    if compiles_nothing(device):
        _log.info("warmup calls nothing: on %s there is nothing to compile", device)
        return 0.0
    rows = negotiator.stats()
    with random_state_kept(device), torch.no_grad(), _progress_line(progress) as show:
        for operation, stages in warmups:
            _make(negotiator, operation, stages, device, show)
    negotiator.restore_stats(rows)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start


def compiles_nothing(device: torch.device) -> bool:
    """Whether samplers on a device have nothing to compile or load, as on a CPU."""
    return device.type == "cpu"


def _make(
    negotiator: Negotiator, operation: Operation, stages: Stages, device: torch.device, show: ShowCount
) -> None:
    selection = None
    while selection is not negotiator.select(operation):  # a successor starts from the beginning
        selection = negotiator.select(operation)
        for stage in stages(selection, device):
            count_one = show(stage.title, stage.total)
            if not all(
                _make_group(negotiator, operation, selection, calls, device, count_one)
                for calls in stage.groups
            ):
                break


def _make_group(
    negotiator: Negotiator,
    operation: Operation,
    selection: Selection,
    calls: Iterable[Call],
    device: torch.device,
    count_one: Callable[[], object],
) -> bool:
    """Make calls in several threads, for most time goes to compilers; return whether the selection is unchanged.

    The first call is made alone: a backend builds some things once.
    """
    most = _at_once(device)
    stream = None if device.type == "cpu" else torch.accelerator.current_stream(device)
    with ThreadPoolExecutor(most, initializer=_begin_thread, initargs=(stream,)) as pool:
        pending: deque[Future[Any]] = deque()
        limit = 1
        for call in calls:
            pending.append(pool.submit(copy_context().run, dispatch, negotiator, operation, call))
            while len(pending) >= limit:
                pending.popleft().result()
                count_one()
            limit = most
            if negotiator.select(operation) is not selection:
                break
        for future in pending:
            future.result()
            count_one()
    return negotiator.select(operation) is selection


def _at_once(device: torch.device) -> int:
    """Return the number of parallel calls: on a CPU a single call, with nothing to compile."""
    return 1 if device.type == "cpu" else _CALLS_IN_FLIGHT


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
