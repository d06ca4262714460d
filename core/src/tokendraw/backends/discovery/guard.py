"""Contains the code of plugins and engines: any exception is a reason in words, with the line of that code.

What may pollute, block or end the process is called in a new one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

from tokendraw.backends.discovery import settings
from tokendraw.errors import PluginError, format_error, printable

T = TypeVar("T")

_log = logging.getLogger("tokendraw")


def watched(name: str, advice: str) -> contextlib.AbstractContextManager[object]:
    """Surround the load of a third party's plugin, filter or command; ``advice`` says how to do without it.

    Commands replace this function, to say which one has ended the process, or does not come to an end.
    """
    return contextlib.nullcontext()


def guarded(action: str, call: Callable[[], T], package: str = "") -> T:
    """Call a plugin's code, and raise any exception as a PluginError, whose cause it is.

    A plugin that calls ``sys.exit`` must not end its host, so this catches more than ``Exception``; only an interrupt
    from the keyboard is the user's own. The message ends with the line of ``package`` that was running.
    """
    try:
        return call()
    except (KeyboardInterrupt, PluginError):
        raise
    except BaseException as error:
        log_traceback(action, error, aloud=settings.is_debugging())
        raise PluginError(f"{action} raised {format_error(error)}{format_origin(error, package)}") from error


def log_traceback(action: str, error: BaseException, *, aloud: bool) -> None:
    """Log the traceback of an exception: as a warning with ``aloud`` (``TOKENDRAW_DEBUG=1``), else for debugging."""
    _log.log(logging.WARNING if aloud else logging.DEBUG, "%s failed", action, exc_info=error)


def package_of(plugin: object) -> str:
    """Name the top-level package of a plugin object or of an object built by a plugin."""
    name = getattr(plugin, "__module__", None) or getattr(plugin, "__name__", "")  # the latter of a module
    return str(name).partition(".")[0]


def format_origin(error: BaseException, package: str) -> str:
    """Write `` (acme_tokendraw/sampler.py:42)``: the innermost frame of ``package`` in a traceback, or nothing."""
    origin, trace = "", error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if package and name.partition(".")[0] == package:
            path = PurePath(trace.tb_frame.f_code.co_filename)
            depth = name.count(".") + 1 + (path.name == "__init__.py")
            origin = f" ({printable(PurePath(*path.parts[-depth:]).as_posix())}:{trace.tb_lineno})"
        trace = trace.tb_next
    return origin


TIMEOUT_SECONDS = 300
"""Time limit of a call; a cold import over a network takes tens of seconds."""

# The parent's path comes before any other import: the working folder may hold modules of any name.
_CODE = """\
import sys
function, count = sys.argv[1], int(sys.argv[2])
arguments, sys.path[:] = sys.argv[3 : 3 + count], sys.argv[3 + count :]
import importlib
module, _, name = function.partition(":")
getattr(importlib.import_module(module), name)(*arguments)
"""


class ProcessResult(NamedTuple):
    """Last line on stdout, parsed as JSON (None if missing or malformed), and exit status (None after a timeout)."""

    value: Any
    exit_status: int | None


def call_in_new_process(
    function: str, *arguments: str, timeout_seconds: float | None = None, verbose: bool = False
) -> ProcessResult:
    """Call ``module:function`` in a new process, and read the JSON that the function prints as its last line."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, function, str(len(arguments)), *arguments, *map(os.fsdecode, sys.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if verbose else subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    exit_status = None
    with process:
        try:
            output, _ = process.communicate(timeout=timeout_seconds or TIMEOUT_SECONDS)
            exit_status = process.returncode
        except subprocess.TimeoutExpired:
            _kill(process)
            output, _ = process.communicate()
        finally:
            _kill(process)
    try:
        return ProcessResult(json.loads(output.splitlines()[-1]), exit_status)
    except (IndexError, ValueError):
        return ProcessResult(None, exit_status)


def _kill(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
