"""What commands print: tables without truncation, JSON, and on stderr progress and, with ``--verbose``, tracebacks.

And how they end: errors as a sentence and an exit code, Ctrl-C, a closed pipe, a full disk. None has a traceback. Exit
codes: 0 fine; 1 not usable (no sampler, a file without logits, an explicit choice that cannot be honoured, a stdout
that cannot be written to); 2 usage (options, parameters outside their range, malformed settings); 130 interrupted; 141
the reader of a pipe left.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO

import click
from click.core import ParameterSource

from tokendraw.backends.discovery import guard
from tokendraw.errors import InvalidParameterError, SettingsError, TokendrawError, TokendrawWarning, as_error

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

    padding, has_header = (0, 2, 0, 0), any(header)
    table = Table(box=None, show_header=has_header, header_style="bold", pad_edge=False, padding=padding)
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
        with contextlib.suppress(OSError):  # stderr has no reader
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


# How commands end.

NOT_USABLE = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE, what a shell shows for programs that the signal ends

SECONDS_OF_A_LOAD = 10.0
"""Time after which a command says what it is still loading."""
_SHOW_CURSOR = b"\x1b[?25h"  # progress hides it
_OPTION_OF_ARGUMENT = {"positions": "position", "filter_orders": "filter_order"}
"""Maps arguments of the library to options with other names."""


class GuardedCommand(click.Command):
    """Command that reports errors of tokendraw as a sentence on stderr and an exit code, not as tracebacks."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.help = self.help or self.short_help  # without docstrings, as of python -OO

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; raise an error of tokendraw as one that click shows."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except (TokendrawError, TokendrawWarning) as error:
            if error.__cause__ is not None:
                _log.debug("the cause:", exc_info=error.__cause__)  # shown with --verbose
            of_settings = isinstance(error, SettingsError)  # which is about variables and a file, not options
            message = str(error) if of_settings else in_options(str(error), self)
            is_usage = of_settings or isinstance(error, InvalidParameterError)
            raise (_Misused if is_usage else _NotUsable)(message) from error


class _NotUsable(click.ClickException):
    exit_code = NOT_USABLE

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file, err=True)


class _Misused(_NotUsable):
    exit_code = USAGE


@contextlib.contextmanager
def ended_by_exit_code(as_json: bool) -> Iterator[None]:
    """Turn an interrupt, or a failure to write to stdout, into click's exit with a code, and let other errors pass.

    With ``--json`` these are printed as a JSON object too, unless the command has printed one.
    """
    try:
        try:
            yield
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if as_json and not _was_interrupted(error) and not has_printed_json():
                unexpected = f"{type(error).__name__}: {error}"
                text = error.format_message() if isinstance(error, click.ClickException) else unexpected
                print_json({"error": text})
            raise
        finally:
            sys.stdout.flush()  # here, where it is caught, and not at the interpreter's exit
    except BaseException as error:
        if _was_interrupted(error):
            _say("")
            raise click.exceptions.Exit(INTERRUPTED) from None
        if isinstance(error, BrokenPipeError):
            _discard(1)
            raise click.exceptions.Exit(PIPE_CLOSED) from None
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            _discard(1)
            _say(f"'stdout' cannot be written to: {error.strerror}. Write to another place.")
            raise click.exceptions.Exit(NOT_USABLE) from None
        raise


def _was_interrupted(error: BaseException | None) -> bool:
    """Tell whether an error is an interrupt, or a library made it from an interrupt."""
    visited_ids: set[int] = set()
    while error is not None and id(error) not in visited_ids:
        if isinstance(error, KeyboardInterrupt):
            return True
        visited_ids.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _say(line: str) -> None:
    try:
        click.echo(line, err=True)
    except OSError:  # stderr cannot be written to either
        _discard(2)


def _discard(descriptor: int) -> None:
    """Discard the buffer of a failed stream, so that the interpreter's exit does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def prepare_streams() -> None:
    """Put the null device in place of a closed stdout or stderr; escape characters outside their encoding."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def interrupts_end_imports() -> Iterator[None]:
    """Let Ctrl-C during an import end the process at once.

    Raised there, it may surface as the ImportError of an extension module, or not at all.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # a host has its own way, or a shell has switched interrupts off
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, _SHOW_CURSOR + b"\n" if os.isatty(2) else b"\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


# Killed where the load comes to its end; its stdin ends with the process that loads.
_WATCHER = """
import sys, threading
name, seconds, advice = sys.argv[1], float(sys.argv[2]), sys.argv[3]

def say(what):
    print(f"{what} {advice}", file=sys.stderr, flush=True)

timer = threading.Timer(seconds, say, [f"{name!r} is still being loaded after {seconds:g} s."])
timer.daemon = True
timer.start()
sys.stdin.read()
say(f"The process ended while it loaded {name!r}.")
"""


@contextlib.contextmanager
def _watched(name: str, advice: str) -> Iterator[None]:
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHER, name, str(SECONDS_OF_A_LOAD), advice],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process
    )
    with watcher:
        try:
            yield
        finally:
            watcher.kill()


@contextlib.contextmanager
def loads_are_watched() -> Iterator[None]:
    """Name on stderr a third party's plugin, filter or command that ends the process, or hangs, as it is loaded.

    A process of its own says so: code that crashes takes this one with it, and may hold the lock of all its threads.
    """
    before, guard.watched = guard.watched, _watched
    try:
        yield
    finally:
        guard.watched = before


def warn(messages: Iterable[str], *, strict: bool, outcome: str = "") -> None:
    """Print the warnings of :func:`tokendraw.load_sampler` on stderr.

    :param strict: raise the first instead, as :func:`tokendraw.load_sampler` does under ``TOKENDRAW_STRICT=1``.
    :param outcome: as of :func:`tokendraw.errors.as_error`.
    """
    for message in messages:
        if strict:
            raise TokendrawError(as_error(message, outcome))
        click.echo(message, err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = str(message)
    if not issubclass(category, TokendrawWarning):  # not ours: where it comes from helps
        text = warnings.formatwarning(text, category, filename, lineno).rstrip()
    click.echo(text, err=True)


def in_options(text: str, command: click.Command) -> str:
    """Replace the names of arguments in ``text`` by the options of ``command``.

    ``'top_p' of row 0`` becomes ``'--top-p'``, ``device='cpu'`` becomes ``--device cpu``. A command has one value for
    all rows, so the row goes, except that of a position. Arguments that the command has no option for stay.
    """
    options = {str(param.name): param.opts[0] for param in command.params if isinstance(param, click.Option)}
    for argument, name in _OPTION_OF_ARGUMENT.items():
        if name in options:
            options.setdefault(argument, options[name])
    leading = re.match(r"'(\w+)'( of row \d+)?", text)  # further on it may be a key of the configuration file
    if leading and leading[1] in options:
        row = leading[2] if leading[1] == "positions" else None
        text = f"'{options[leading[1]]}'{row or ''}{text[leading.end() :]}"
    text = text.replace(" or None, found", ", found")  # an option is left out instead

    def as_option(argument: re.Match[str]) -> str:
        option, value = options.get(argument[1]), argument[2]
        return argument[0] if option is None else option if value is None else f"{option} {value}"

    return re.sub(r"\b(\w+)=(?:'([^']*)')?", as_option, text)


def command_line(ctx: click.Context) -> str:
    """Write the command line that repeats a running command."""
    words = ["tokendraw", str(ctx.info_name)]
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in ctx.params or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue  # what is not a parameter, such as --verbose, changes nothing of a run
        value = ctx.params[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        option = parameter.opts[:1] if isinstance(parameter, click.Option) else []
        for item in value if parameter.multiple else (value,):
            words += [*option, "none" if item is None else str(item)]
    return shlex.join(words)
