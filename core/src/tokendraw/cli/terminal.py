"""Prints tables without truncation, JSON, and on stderr progress and, with ``--verbose``, tracebacks of plugins."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA_VERSION = 1
"""Version of the keys of ``--json``: rises when a key goes or changes its meaning, not when one is added."""
_HAS_JSON = "tokendraw.has_json"
_VERBOSE = "tokendraw.verbose"
PIPE_WIDTH = 100
"""Width in columns of prose where stdout is not a terminal; a table there has a line for each row, however long."""
SECONDS_PER_LINE = 30.0
"""Time between two lines about long work where stderr is not a terminal."""
_LEAST_WIDTH = 60
"""Least width in columns: narrower tables would be cut, and a narrower terminal breaks the lines itself."""
_UNLIMITED = 10**9

_log = logging.getLogger("tokendraw")


def print_json(value: Mapping[str, Any]) -> None:
    """Print the JSON object of a command on stdout, with null for infinities and NaN.

    :param value: keys beside ``schema_version`` and ``error``; ``error`` is null unless ``value`` has the key.
    """
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[_HAS_JSON] = True
    complete = {"schema_version": SCHEMA_VERSION, "error": None, **value}
    click.echo(json.dumps(_finite(complete), indent=2, allow_nan=False))


def has_printed_json() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and _HAS_JSON in context.meta


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
    """Print a table without rules; on a terminal the last column wraps and all columns before keep their width.

    :param header: titles of the columns; "" for a column without one.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, show_header=any(header), header_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in header[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(header[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a reason are no mark-up
    print_lines(table, indent=indent)


def print_heading(title: str, more: str = "") -> None:
    click.echo(f"\n{click.style(title, bold=True)}{more}")


def print_lines(table: Table, *, indent: int = 0) -> None:
    """Print a table in the width of the terminal; in a pipe each row is a single line."""
    from rich.console import Console
    from rich.padding import Padding

    # click drops colours in a pipe, and lets a closed pipe reach the guard of the command.
    console = Console(width=console_width() if on_terminal() else _UNLIMITED)
    with console.capture() as capture:
        console.print(Padding(table, (0, 0, 0, indent), expand=False))
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def on_terminal() -> bool:
    return sys.stdout.isatty()


def console_width() -> int:
    """Return the width of tables on stdout, in columns."""
    from rich.console import Console

    return max(Console().width, _LEAST_WIDTH) if on_terminal() else PIPE_WIDTH


def plugins_at_work() -> contextlib.AbstractContextManager[object]:
    """Redirect prints of plugins and libraries to stderr: stdout is for the result of the command."""
    return contextlib.redirect_stdout(sys.stderr)


@contextlib.contextmanager
def progress(doing: str) -> Iterator[None]:
    """Show on stderr the work of plugins: all the time on a terminal, elsewhere in a line now and then."""
    if not sys.stderr.isatty():
        with _lines_on_stderr(lambda seconds: f"{doing}, {seconds} s"):
            yield
        return
    with _console_on_stderr() as console:
        spinner = "line" if console.options.ascii_only else "dots"
        with console.status(doing, spinner=spinner):
            yield


@contextlib.contextmanager
def progress_bar(total: int, unit: str) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that reports the current step and how many steps are done.

    On a terminal a bar on stderr shows both, elsewhere a line now and then. What plugins print goes to stderr.

    :param unit: what a step is, in the plural.
    """
    if not sys.stderr.isatty():
        state = ["", 0]

        def report(doing: str, done: int) -> None:
            state[:] = doing, done

        with _lines_on_stderr(
            lambda seconds: f"{state[1]:,} of {total:,} {unit} after {seconds} s: {state[0]}"
        ):
            yield report
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with _console_on_stderr() as console, Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda doing, done: bar.update(task, description=doing, completed=done)


@contextlib.contextmanager
def _console_on_stderr() -> Iterator[Console]:
    """Yield a console for progress: meanwhile, what is printed stands on lines of its own above."""
    from rich.console import Console
    from rich.file_proxy import FileProxy

    class Stream(FileProxy):
        # click writes past a stream that names none, into the line of progress
        encoding, errors = "utf-8", "strict"

    console = Console(stderr=True)
    with contextlib.redirect_stderr(Stream(console, sys.stderr)), plugins_at_work():
        yield console


@contextlib.contextmanager
def _lines_on_stderr(line: Callable[[int], str]) -> Iterator[None]:
    """Print a line every :data:`SECONDS_PER_LINE`, as a sign of life in a log."""
    start, is_over = time.monotonic(), threading.Event()

    def write() -> None:
        with contextlib.suppress(OSError):  # nobody reads stderr
            while not is_over.wait(SECONDS_PER_LINE):
                click.echo(line(round(time.monotonic() - start)), err=True)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        with plugins_at_work():
            yield
    finally:
        is_over.set()
        thread.join()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def start_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Show tokendraw's log on stderr until the command ends, failures of plugins with their tracebacks."""
    if value:
        ctx.meta[_VERBOSE] = True
        ctx.with_resource(logged_by(StderrHandler()))


def is_verbose(ctx: click.Context) -> bool:
    return _VERBOSE in ctx.meta


@contextlib.contextmanager
def logged_by(handler: logging.Handler) -> Iterator[None]:
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)


class StderrHandler(logging.Handler):
    """Prints each record once on stderr: no text twice, and no exception whose cause was shown.

    A plugin may be loaded for each operation, and what it raised may be the cause of the command's own error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[object] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        causes: set[object] = {text}
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and error not in causes:
            causes.add(error)
            error = error.__cause__
        if self._printed.isdisjoint(causes):
            click.echo(text, err=True)
        self._printed |= causes
