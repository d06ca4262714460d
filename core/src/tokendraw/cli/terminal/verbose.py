"""The option ``--verbose``: tracebacks of failed plugins on stderr."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click

_KEY = "tokendraw.verbose"
_log = logging.getLogger("tokendraw")


def start(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Show tokendraw's log on stderr until the command ends, failures of plugins with their tracebacks."""
    if value:
        ctx.meta[_KEY] = True
        ctx.with_resource(logged_by(StderrHandler()))


def is_verbose(ctx: click.Context) -> bool:
    """Whether ``--verbose`` was given."""
    return _KEY in ctx.meta


@contextlib.contextmanager
def logged_by(handler: logging.Handler) -> Iterator[None]:
    """Pass tokendraw's whole log to a handler."""
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)


class StderrHandler(logging.Handler):
    """Prints each record once on stderr: no text twice, and no exception whose cause was shown."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[object] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, unless the same text was printed before: a plugin may be loaded for each operation."""
        text, causes = self.format(record), set[object]()
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and error not in causes:
            causes.add(error)
            error = error.__cause__
        if self._printed.isdisjoint({text, *causes}):
            click.echo(text, err=True)
        self._printed |= {text, *causes}
