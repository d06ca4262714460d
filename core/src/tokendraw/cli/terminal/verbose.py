"""The option ``--verbose``: tracebacks of failed plugins on stderr."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator

import click

_KEY = "tokendraw.verbose"


def start(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Show tokendraw's log on stderr until the command ends, failures of plugins with their tracebacks."""
    if not value:
        return
    ctx.meta[_KEY] = handler = StderrHandler()
    ctx.with_resource(logged_by(handler))


@contextlib.contextmanager
def logged_by(handler: logging.Handler) -> Iterator[None]:
    """Pass tokendraw's whole log to a handler."""
    log = logging.getLogger("tokendraw")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def is_verbose(ctx: click.Context) -> bool:
    """Whether ``--verbose`` was given."""
    return _KEY in ctx.meta


def show_cause(ctx: click.Context, error: BaseException) -> None:
    """With ``--verbose``, show the traceback of an error's cause unless the log has shown the traceback."""
    handler = ctx.meta.get(_KEY)
    causes = []
    cause = error.__cause__
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__
    if handler is not None and causes and not any(cause in handler.exceptions for cause in causes):
        click.echo("".join(traceback.format_exception(causes[0])).rstrip(), err=True)


class StderrHandler(logging.Handler):
    """Prints each record once on stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.exceptions: list[BaseException] = []
        self._printed_texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, unless the same text was printed before."""
        if record.exc_info and record.exc_info[1] is not None:
            self.exceptions.append(record.exc_info[1])
        text = self.format(record)
        if text not in self._printed_texts:  # a plugin may be loaded for each operation
            click.echo(text, err=True)
        self._printed_texts.add(text)
