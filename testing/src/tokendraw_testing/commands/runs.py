"""Runs the kit and shows the progress on a terminal."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

import tokendraw_testing
from tokendraw.commands import progress, progress_bar

if TYPE_CHECKING:
    from tokendraw_testing import Subject
    from tokendraw_testing.kept_sets import KeptSets
    from tokendraw_testing.kit.property import Property
    from tokendraw_testing.kit.report import FuzzReport, Line, Report

_MOST_NAMES = 3


def check_properties(subject: Subject, properties: Sequence[Property], jobs: int | None) -> Report:
    """Check the properties; a bar on stderr, or a line now and then, names the current properties.

    An interrupt, and SIGTERM, print on stderr what the finished lines showed.

    :param jobs: number of processes; None: what suits the subject.
    """
    from tokendraw_testing.kit.run import applies
    from tokendraw_testing.kit.workers import usual_jobs

    total = sum(applies(subject, prop) for prop in properties)
    in_work: dict[str, None] = {}
    done: list[Line] = []
    try:
        with _termination_interrupts(), progress_bar(total, "lines") as show:

            def starting(prop: Property) -> None:
                in_work[prop.name] = None
                show(_shorten(list(in_work)), len(done))

            def finished(line: Line) -> None:
                done.append(line)
                in_work.pop(line.name)
                show(_shorten(list(in_work)), len(done))

            return tokendraw_testing.run(
                subject,
                only=tuple(prop.name for prop in properties),
                jobs=jobs or usual_jobs(subject),
                starting=starting,
                finished=finished,
            )
    except KeyboardInterrupt:
        _print_finished(done, total)
        raise


@contextlib.contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let SIGTERM, which runners of jobs send at their limit, interrupt like Ctrl-C, unless a host answers it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _print_finished(lines: Sequence[Line], total: int) -> None:
    counts = Counter(str(line.status) for line in lines)
    counted = "".join(f", {count} {status}" for status, count in counts.items())
    click.echo(f"Interrupted after {len(lines)} of {total} lines{counted}.", err=True)
    for line in lines:
        if line.status == "failed":
            click.echo(str(line), err=True)


def fuzz(subject: Subject, seconds: float, operation: str | None, jobs: int | None) -> FuzzReport:
    """Check random cases; a bar on stderr, or a line now and then, shows seconds, cases and findings."""
    from tokendraw_testing.kit import run
    from tokendraw_testing.kit.workers import usual_jobs

    with progress_bar(round(seconds), "seconds") as show:
        start: float | None = None
        show("starting", 0)

        def count(cases: int, findings: int) -> None:
            nonlocal start
            start = start or time.monotonic()  # the seconds begin with the first case
            done = min(round(time.monotonic() - start), round(seconds))
            show(f"{cases:,} cases, {findings:,} findings", done)

        jobs = jobs or usual_jobs(subject)
        return run.fuzz(subject, seconds, operation=operation, jobs=jobs, progress=count)


def fuzz_case(subject: Subject, number: int, operation: str | None) -> FuzzReport:
    """Check one random case, in this process."""
    from tokendraw_testing.kit import run

    with progress(f"looking at case {number}"):
        return run.fuzz_case(subject, number, operation=operation)


def kept_sets(subject: Subject, seconds: float, operation: str | None, only: int | None) -> KeptSets:
    """Judge the kept sets of random rows, in this process."""
    from tokendraw_testing.kept_sets import sweep

    with progress("looking at kept sets"):
        return sweep(subject, seconds, operation, only)


def _shorten(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
