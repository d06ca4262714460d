"""Finds the line of a plugin's code behind an exception, for its author and for bug reports."""

from __future__ import annotations

from pathlib import PurePath

from tokendraw.errors.formatting import printable


def package_of(plugin: object) -> str:
    """Name the top-level package of a plugin object or of an object built by a plugin."""
    name = getattr(plugin, "__module__", None) or getattr(plugin, "__name__", "")  # the latter of a module
    return str(name).partition(".")[0]


def format_origin(error: BaseException, package: str) -> str:
    """Write `` (acme_tokendraw/sampler.py:42)``: the innermost frame of ``package`` in the traceback.

    Frames of torch and other libraries do not count. Empty for a traceback without a frame of the package.
    """
    origin, trace = "", error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if package and name.partition(".")[0] == package:
            path = PurePath(trace.tb_frame.f_code.co_filename)
            depth = name.count(".") + 1 + (path.name == "__init__.py")
            origin = f" ({printable(PurePath(*path.parts[-depth:]).as_posix())}:{trace.tb_lineno})"
        trace = trace.tb_next
    return origin
