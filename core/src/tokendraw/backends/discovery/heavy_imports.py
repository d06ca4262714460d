"""Finds plugins with heavy imports, torch or a backend, by loading the plugin in a new Python process.

``tokendraw list`` loads every installed plugin, so one such import delays every command. A process that has torch
already cannot see it.
"""

from __future__ import annotations

import json
import os
import sys

import importlib_metadata

from tokendraw.backends.discovery.hooks import ENTRY_POINT_GROUP
from tokendraw.backends.discovery.new_process import call_in_new_process
from tokendraw.errors.formatting import all_of

HEAVY_MODULES = ("torch", "triton", "flashinfer", "aiter")
"""Modules that take a second or more to import: negotiation needs none of them."""

FATAL_SECONDS = 60
"""Time limit of a plugin's import in ``tokendraw doctor``."""


def heavy_imports(entry_point: str) -> tuple[str, ...]:
    """Load a plugin and its description in a new Python process, and list its heavy imports.

    A plugin that raises is listed with the imports up to there. One that ends its process, or takes more than
    300 s, gives an empty tuple: discovery reports such a plugin.

    :param entry_point: value of the plugin's entry point, ``package.module:object``.
    :returns: names of :data:`HEAVY_MODULES`, in their order.
    """
    names = call_in_new_process(f"{__name__}:report", entry_point).value
    return tuple(names) if isinstance(names, list) else ()


def fatal_import(entry_point: str) -> str | None:
    """Load a plugin in a new Python process; say how that ended the process, or that it hung. None: it did neither."""
    status = call_in_new_process(f"{__name__}:report", entry_point, timeout_seconds=FATAL_SECONDS).exit_status
    if status is None:
        return f"loading it was not done after {FATAL_SECONDS} s"
    return f"loading it ended the process: exit status {status}" if status else None


def report(entry_point: str) -> None:
    """Load the plugin, print the heavy modules as a line of JSON, and end the new process."""
    before = set(sys.modules)  # a file of site-packages may have imported torch at the start of Python
    try:
        plugin = importlib_metadata.EntryPoint("plugin", entry_point, ENTRY_POINT_GROUP).load()
        plugin.tokendraw_describe()
    except BaseException:  # discovery says in words what is wrong with the plugin
        pass
    imported = [name for name in HEAVY_MODULES if name in sys.modules and name not in before]
    print(f"\n{json.dumps(imported)}", flush=True)
    os._exit(0)  # no handler of the plugin prints behind the line, and torch takes its time to end


def slow_start(name: str, modules: tuple[str, ...]) -> str:
    """Write the complaint about a plugin with heavy imports, and the mend.

    :param name: of the plugin.
    :param modules: names of the imported modules, at least one.
    """
    return (
        f"{name!r} needs a module without heavy imports, found that it imports {all_of(modules)}, which delays every "
        "command of tokendraw. Import them in tokendraw_build."
    )
