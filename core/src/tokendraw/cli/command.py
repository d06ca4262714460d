"""How commands end: errors as a sentence and an exit code, Ctrl-C, a closed pipe, a full disk. None has a traceback.

Exit codes: 0 fine; 1 not usable (no sampler, a file without logits, an explicit choice that cannot be
honoured, a stdout that cannot be written to); 2 usage (options, parameters outside their range, malformed settings);
130 interrupted; 141 the reader of a pipe left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, TextIO

import click
from click.core import ParameterSource

from tokendraw.backends.discovery import guard
from tokendraw.cli.terminal import has_printed_json, print_json
from tokendraw.errors import InvalidParameterError, SettingsError, TokendrawError, TokendrawWarning, as_error

NOT_USABLE = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE, what a shell shows for programs that the signal ends

SECONDS_OF_A_LOAD = 10.0
"""Time after which a command says what it is still loading."""
_SHOW_CURSOR = b"\x1b[?25h"  # progress hides it
_OPTION_OF_ARGUMENT = {"positions": "position", "filter_orders": "filter_order"}
"""Maps arguments of the library to options with other names."""

_log = logging.getLogger("tokendraw")


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
    """Error shown as its sentence alone."""

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
