"""Calls functions of tokendraw in a new Python process, which a plugin or an engine may pollute, block or end."""

from __future__ import annotations

import json
import os
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
    """Last line on stdout and exit status of a new process."""

    value: Any
    """Last line, parsed as JSON; None if the line is missing or malformed."""
    exit_status: int | None
    """Exit status; None after a timeout."""


def command_line(function: str, *arguments: str) -> list[str]:
    """Build the command that calls ``module:function`` with these arguments, on this process's ``sys.path``."""
    path = map(os.fsdecode, sys.path)
    return [sys.executable, "-c", _CODE, function, str(len(arguments)), *arguments, *path]


def call_in_new_process(function: str, *arguments: str) -> ProcessResult:
    """Call ``module:function`` in a new process, and read the JSON that the function prints as its last line."""
    try:
        run = subprocess.run(
            command_line(function, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProcessResult(None, None)
    try:
        return ProcessResult(json.loads(run.stdout.splitlines()[-1]), run.returncode)
    except (IndexError, ValueError):
        return ProcessResult(None, run.returncode)
