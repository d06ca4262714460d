"""Shares tasks among processes with a subject each; a killed process costs only its task."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, Final, Generic, TypeVar

import torch

from tokendraw import InvalidParameterError
from tokendraw.tools import format_error
from tokendraw_testing.kit.subject import Subject

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

MOST_JOBS: Final = 16
"""Most processes by default: with more, the longest line alone takes longer than the shared rest."""
_SECONDS_TO_END: Final = 5
_SPAWNING: Final = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang


@dataclass(frozen=True)
class Death:
    """A process ended in place of giving the result of a task."""

    how: str
    """Says how: ``ended the process by SIGSEGV``."""


def usual_jobs(subject: Subject) -> int:
    """Return the number of processes for a subject: the usable cores on a CPU, otherwise 1."""
    if subject.again is None or subject.device.type != "cpu":
        return 1
    return min(usable_cores(), MOST_JOBS)


def usable_cores() -> int:
    """Return the number of cores usable by the process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results(
    subject: Subject,
    work: Callable[[Subject, _Task], _Result],
    tasks: Iterable[_Task],
    jobs: int,
    starting: Callable[[_Task], None] | None = None,
) -> Generator[tuple[_Task, _Result | Death]]:
    """Yield each task with its result as soon as it ends. Close the generator to end every process at once.

    A task is taken from ``tasks`` when a process can begin with it: the start of a process takes seconds.

    :param work: has to be picklable, like the tasks and results.
    :param starting: called with each task as it is given to a process.
    :raises InvalidParameterError: the subject is not an installed one, so no other process can make it.
    """
    again = subject.again
    if again is None:
        raise InvalidParameterError(
            f"'jobs' needs 1 for a subject that is not installed, found {jobs}. Make it by Subject.installed(...)."
        )
    left: Iterator[_Task] = iter(tasks)
    workers: set[_Worker[_Result]] = set()
    starts: dict[connection.Connection, _Worker[_Result]] = {}
    at_work: dict[connection.Connection, tuple[_Worker[_Result], _Task]] = {}

    def start() -> None:
        with _interrupts_blocked():
            worker = _Worker[_Result](again, work)
            workers.add(worker)
        starts[worker.pipe] = worker

    def give(worker: _Worker[_Result]) -> None:
        nonlocal left
        for task in left:
            if worker.is_alive and worker.takes(task):
                at_work[worker.pipe] = worker, task
                if starting:
                    starting(task)
            else:  # another process begins with the task
                left = itertools.chain([task], left)
                start()
            return

    try:
        for _ in range(jobs):
            start()
        while starts or at_work:
            for pipe in connection.wait([*starts, *at_work]):
                assert isinstance(pipe, connection.Connection)
                if pipe not in starts:
                    worker, task = at_work.pop(pipe)
                    result = worker.result()
                    give(worker)
                    yield task, result
                    continue
                worker = starts.pop(pipe)
                death = worker.result()
                if isinstance(death, Death):  # a process that cannot start costs a task, so that this ends
                    for task in itertools.islice(left, 1):
                        if starting:
                            starting(task)
                        yield task, death
                give(worker)
    finally:
        for worker in workers:
            worker.kill()


class _Worker(Generic[_Result]):
    """A process and the pipe to it. The process sends None when it is ready, then the result of each task."""

    def __init__(self, again: Callable[[], Subject], work: Callable[[Subject, Any], _Result]) -> None:
        self.pipe, its_end = _SPAWNING.Pipe()
        self._process = _SPAWNING.Process(target=_serve, args=(its_end, again, work))
        self._process.start()
        its_end.close()
        self.is_alive = True

    def takes(self, task: object) -> bool:
        """Send a task to the process; False if the process is dead."""
        try:
            self.pipe.send(task)
        except OSError:
            return False
        return True

    def result(self) -> _Result | Death:
        """Receive the result of a task, or None from a ready process."""
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            self.is_alive = False
            self._process.join(_SECONDS_TO_END)
            code = self._process.exitcode
            if code is None:
                return Death("closed the files of the process")
            if code < 0:
                return Death(f"ended the process by signal {-code}, {signal.strsignal(-code)}")
            return Death(f"ended the process with exit code {code}")

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(
    pipe: connection.Connection, again: Callable[[], Subject], work: Callable[[Subject, Any], Any]
) -> None:
    """Work on tasks until the pipe is closed."""
    with contextlib.suppress(OSError):  # stderr is closed
        os.dup2(2, 1)  # stdout is the command's own
        faulthandler.enable()
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where they cannot be blocked
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    subject = functools.cache(again)
    with contextlib.suppress(Exception):  # which the first task will tell of
        subject()
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            task = pipe.recv()
            try:
                result = work(subject(), task)
            except Exception as error:  # to build it raised, which it did not where the run began
                result = Death(f"raised {format_error(error)}")
            pipe.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let processes started in the block ignore Ctrl-C: the parent answers it by ending them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which the first start would do, and unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
