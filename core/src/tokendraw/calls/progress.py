"""Shows the progress of a warmup in a line on the terminal, erased at the end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

ShowCount: TypeAlias = Callable[[str, int | None], Callable[[], None]]
"""Shows a title beside a count of calls with a total, None if unknown; returns the function that adds one."""


@contextlib.contextmanager
def progress_line(is_shown: bool | None) -> Iterator[ShowCount]:
    """Show a line on stderr.

    :param is_shown: None: if stderr is a terminal.
    """
    if not (sys.stderr.isatty() if is_shown is None else is_shown):
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("tokendraw warms up: {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as line:

        def show(title: str, total: int | None) -> Callable[[], None]:
            return partial(line.advance, line.add_task(title, total=total))

        yield show


def _silent(title: str, total: int | None) -> Callable[[], None]:
    return lambda: None
