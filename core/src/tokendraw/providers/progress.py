"""Shows the progress of a warmup in one line on the terminal, which goes away when it ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol


class Track(Protocol):
    """Shows how many calls are done."""

    def __call__(self, doing: str, total: int | None, /) -> Callable[[], None]:
        """Show ``doing`` beside a count, to which what is returned adds one.

        :param total: None where nobody knows yet how many come.
        """
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

        def track(doing: str, total: int | None, /) -> Callable[[], None]:
            return partial(line.advance, line.add_task(doing, total=total))

        yield track


def _silent(doing: str, total: int | None, /) -> Callable[[], None]:
    return lambda: None
