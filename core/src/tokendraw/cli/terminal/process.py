"""Handles the events that end a command early: Ctrl-C, a closed pipe, a full disk.

Each ends the process with an exit code and at most one line on stderr, anywhere in the program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from tokendraw.backends.discovery import guard

UNWRITABLE = 1
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE, what a shell shows for programs that the signal ends

SECONDS_OF_A_LOAD = 10.0
"""Time after which a command says what it is still loading."""
_SHOW_CURSOR = b"\x1b[?25h"  # progress hides it


@contextlib.contextmanager
def ended_by_exit_code() -> Iterator[None]:
    """Turn an interrupt, or a failure to write to stdout, into click's exit with a code."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, where it is caught, and not at the interpreter's exit
    except BaseException as error:
        if was_interrupted(error):
            _say("")
            raise click.exceptions.Exit(INTERRUPTED) from None
        if isinstance(error, BrokenPipeError):
            _discard(1)
            raise click.exceptions.Exit(PIPE_CLOSED) from None
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            _discard(1)
            _say(f"'stdout' cannot be written to: {error.strerror}. Write to another place.")
            raise click.exceptions.Exit(UNWRITABLE) from None
        raise


@contextlib.contextmanager
def interrupts_end_imports() -> Iterator[None]:
    """Let Ctrl-C during an import end the process at once.

    Raised there, an interrupt may surface as the ImportError of an extension module, or not at all. Anywhere
    else it is raised as usual.
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
def loads_are_watched() -> Iterator[None]:
    """Name on stderr a third party's plugin, filter or command that ends the process, or hangs, as it is loaded.

    A process of its own says so: code that crashes takes this one with it, and may hold the lock of all its threads.
    """

    @contextlib.contextmanager
    def watched(name: str, advice: str) -> Iterator[None]:
        words = [name, str(SECONDS_OF_A_LOAD), advice]
        watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHER, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )
        with watcher:
            try:
                yield
            finally:
                watcher.kill()

    before, guard.watched = guard.watched, watched
    try:
        yield
    finally:
        guard.watched = before


def was_interrupted(error: BaseException | None) -> bool:
    """Tell whether an error is an interrupt, or a library made it from an interrupt."""
    visited_ids: set[int] = set()
    while error is not None and id(error) not in visited_ids:
        if isinstance(error, KeyboardInterrupt):
            return True
        visited_ids.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def prepare_streams() -> None:
    """Put the null device in place of a closed stdout or stderr; escape characters outside their encoding."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, _SHOW_CURSOR + b"\n" if os.isatty(2) else b"\n")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _say(line: str) -> None:
    try:
        click.echo(line, err=True)
    except OSError:  # stderr cannot be written to either
        _discard(2)


def _discard(descriptor: int) -> None:
    """Discard the buffer of a failed stream, so that the interpreter's exit does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
