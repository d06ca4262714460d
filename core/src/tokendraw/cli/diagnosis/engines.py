"""Asks each adapter to an inference engine, in a new process, whether the adapter would replace the engine's sampler.

An adapter imports its engine; the import may take long, print, or end the process.
"""

from __future__ import annotations

import json

import importlib_metadata

from tokendraw.backends.discovery.entry_points import declarations
from tokendraw.backends.discovery.guard import guarded
from tokendraw.backends.discovery.new_process import TIMEOUT_SECONDS, call_in_new_process
from tokendraw.cli.terminal.tables import plugins_at_work
from tokendraw.engines import ENTRY_POINT_GROUP, EngineState
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import format_line, printable


def engines() -> list[EngineState]:
    """Examine the engine of every installed adapter, in the order of names."""
    adapters = {(declaration.name, declaration.value) for declaration in declarations(ENTRY_POINT_GROUP)}
    return [_examine(name, value) for name, value in sorted(adapters)]


def report(name: str, value: str) -> None:
    """Print the state returned by an adapter's entry point as a line of JSON; runs in the new process.

    :param value: of the entry point, ``package.module:function``.
    """

    def ask() -> EngineState:
        state = importlib_metadata.EntryPoint(name, value, ENTRY_POINT_GROUP).load()()
        if not isinstance(state, EngineState):
            raise PluginError(f"{value!r} needs to return an EngineState, found {type(state).__name__}")
        return state

    with plugins_at_work():
        try:
            state = guarded(f"asking {value!r}", ask)
        except PluginError as error:
            state = _broken(name, str(error))
    print(json.dumps(vars(state)))


def _examine(name: str, value: str) -> EngineState:
    """Call the entry point of an adapter in a new process."""
    state, exit_status = call_in_new_process(f"{__name__}:report", name, value)
    if exit_status is None:
        return _broken(name, f"asking {value!r} took more than {TIMEOUT_SECONDS} s")
    try:
        return EngineState(**{**state, "tested": tuple(state["tested"])})
    except (KeyError, TypeError):
        return _broken(name, f"asking {value!r} ended the process: exit status {exit_status}")


def _broken(name: str, reason: str) -> EngineState:
    return EngineState(
        engine=printable(name), installed=None, tested=(), applies=False, reason=format_line(reason)
    )
