"""Shares tasks among processes with a subject each; a killed process costs only its task."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import connection, resource_tracker
from typing import Any, Final, TypeVar

import torch

from tokendraw import InvalidParameterError
from tokendraw.tools import format_error
from tokendraw_testing.kit.report import Line, Status
from tokendraw_testing.kit.subject import Subject

_Task = TypeVar("_Task")

MOST_JOBS: Final = 16
"""Most processes by default: with more, the longest line alone takes longer than the shared rest."""
_SECONDS_TO_END: Final = 5
_SPAWNING: Final = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang


def usual_jobs(subject: Subject) -> int:
    """Return the number of processes for a subject: the usable cores on a CPU, otherwise 1."""
    can_share = subject.again is not None and subject.device.type == "cpu"
    return min(usable_cores(), MOST_JOBS) if can_share else 1


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results(
    subject: Subject,
    work: Callable[[Subject, _Task], Line],
    tasks: Iterable[_Task],
    jobs: int,
    starting: Callable[[_Task], None] | None = None,
) -> Generator[tuple[_Task, Line]]:
    """Yield each task with its line as soon as it ends; a task whose process died has a failed line without a name.

    A task is taken from ``tasks`` when a process can begin with it: the start of a process takes seconds. Close the
    generator to end every process at once.

    :param work: has to be picklable, like the tasks.
    :param jobs: number of processes; 1: this process alone does the work.
    :param starting: called with each task before its work begins.
    :raises InvalidParameterError: the subject is not an installed one, so no other process can make it.
    """

    def begun() -> Iterator[_Task]:
        for task in tasks:
            if starting:
                starting(task)
            yield task

    left = begun()
    if jobs == 1:
        for task in left:
            yield task, work(subject, task)
        return
    if subject.again is None:
        raise InvalidParameterError(
            f"'jobs' needs 1 for a subject that is not installed, found {jobs}. Make it by Subject.installed(...)."
        )
    workers: dict[Any, _Worker] = {}

    def start() -> None:
        worker = _Worker(subject, work)
        workers[worker.pipe] = worker

    try:
        for _ in range(jobs):
            start()
        while workers:
            for pipe in connection.wait(list(workers)):
                worker = workers[pipe]
                ended, (line, is_alive) = worker.task, worker.result()
                following = next(left, None) if is_alive or ended is None else None
                if is_alive and following is not None:
                    worker.give(following)
                else:
                    worker.kill()
                    del workers[pipe]
                if not is_alive:  # processes that cannot start cost a task each, so that the run ends
                    ended = following if ended is None else ended
                    if ended is not None:
                        start()
                if ended is not None:
                    yield ended, line
    finally:
        for worker in workers.values():
            worker.kill()


class _Worker:
    """A process and the pipe to it. The process sends None when it is ready, then the line of each task."""

    def __init__(self, subject: Subject, work: Callable[[Subject, Any], Line]) -> None:
        self.pipe, its_end = _SPAWNING.Pipe()
        self._process = _SPAWNING.Process(target=_serve, args=(its_end, subject.again, work))
        with _interrupts_blocked():
            self._process.start()
        its_end.close()
        self.task: Any = None

    def give(self, task: object) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # it is dead, as :meth:`result` will say
            self.pipe.send(task)

    def result(self) -> tuple[Line, bool]:
        """Receive the line of the task, or a line about the end of the process; and whether the process is alive."""
        with contextlib.suppress(EOFError, OSError):
            return self.pipe.recv(), True
        self._process.join(_SECONDS_TO_END)
        code = self._process.exitcode
        how = f"ended the process with exit code {code}"
        if code is None:
            how = "closed the files of the process"
        elif code < 0:
            how = f"ended the process by signal {-code}, {signal.strsignal(-code)}"
        return _failed(how), False

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _failed(how: str) -> Line:
    return Line(name="", status=Status.FAILED, detail=f"a call {how}")


def _serve(
    pipe: connection.Connection, again: Callable[[], Subject], work: Callable[[Subject, Any], Line]
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
                result = _failed(f"raised {format_error(error)}")
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
