"""Shows the progress of a warmup in one line on the terminal, which goes away when it ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

_Call = TypeVar("_Call")


class Track(Protocol):
    """Passes calls on, and shows how many of them are done."""

    def __call__(self, doing: str, calls: Iterable[_Call], total: int | None, /) -> Iterable[_Call]:
        """Show ``doing`` beside the count; ``total`` is None where nobody knows yet how many come."""
        ...


@contextlib.contextmanager
def progress_line(shown: bool | None) -> Iterator[Track]:
    """Show a line on stderr.

    :param shown: None: if stderr is a terminal.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("tokendraw warms up: {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as line:

        def track(doing: str, calls: Iterable[_Call], total: int | None, /) -> Iterator[_Call]:
            task = line.add_task(doing, total=total)
            for call in calls:
                yield call
                line.advance(task)

        yield track


def _silent(doing: str, calls: Iterable[_Call], total: int | None, /) -> Iterable[_Call]:
    return calls
