"""Asks the adapters to inference engines whether they would draw there, each in a process of its own.

An adapter imports its engine to look at it, which may take long, print, or end the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import importlib_metadata

from tokendraw.backends.discovery.guard import guarded
from tokendraw.cli.terminal.tables import plugins_at_work
from tokendraw.engines import ENTRY_POINT_GROUP, EngineState
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import format_line, printable

_CODE = """\
import sys
sys.path[:] = sys.argv[3:]
from tokendraw.cli.diagnosis.engines import report
report(sys.argv[1], sys.argv[2])
"""
_PATIENCE = 300  # seconds; a cold import over a network takes tens of them


def engines() -> list[EngineState]:
    """Look at the engine of every adapter that is installed, in the order of their names."""
    return [_asked(name, value) for name, value in sorted(set(_adapters()))]


def report(name: str, value: str) -> None:
    """Print the state that an adapter's entry point returns as a line of JSON: what the process of its own runs.

    :param value: of the entry point, ``package.module:function``.
    """
    with plugins_at_work():
        try:
            line = json.dumps(vars(guarded(f"asking {value!r}", lambda: _state(name, value))))
        except PluginError as error:
            line = json.dumps(vars(_broken(name, str(error))))
    print(line)


def _state(name: str, value: str) -> EngineState:
    found = importlib_metadata.EntryPoint(name, value, ENTRY_POINT_GROUP).load()()
    if not isinstance(found, EngineState):
        raise PluginError(f"{value!r} needs to return an EngineState, found {type(found).__name__}")
    return found


def _adapters() -> Iterator[tuple[str, str]]:
    for distribution in importlib_metadata.distributions():
        try:
            entry_points = tuple(distribution.entry_points.select(group=ENTRY_POINT_GROUP))
        except Exception:  # another project's malformed entry_points.txt is not ours to report
            continue
        yield from ((entry_point.name, entry_point.value) for entry_point in entry_points)


def _asked(name: str, value: str) -> EngineState:
    try:
        run = subprocess.run(
            [sys.executable, "-c", _CODE, name, value, *sys.path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _broken(name, f"asking {value!r} took more than {_PATIENCE} s")
    lines = run.stdout.splitlines()
    try:
        fields = json.loads(lines[-1])
        return EngineState(**{**fields, "tested": tuple(fields["tested"])})
    except (IndexError, KeyError, TypeError, ValueError):
        return _broken(name, f"asking {value!r} ended the process: exit status {run.returncode}")


def _broken(name: str, reason: str) -> EngineState:
    return EngineState(
        engine=printable(name), installed=None, tested=(), applies=False, reason=format_line(reason)
    )
