"""Calls functions of tokendraw in a new Python process, which a plugin or an engine may pollute, block or end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any, NamedTuple

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
    """Call ``module:function`` in a new process, and read the JSON that the function prints as its last line.

    :param timeout_seconds: None: :data:`TIMEOUT_SECONDS`.
    :param verbose: let the process write on stderr.
    """
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
