"""The operations that can be timed: a module each, of the name that the operation has in the registry of the core.

Its ``BENCH`` is a :class:`tokendraw_bench.operation.BenchOperation`. Importing one imports no torch: the command line
reads its presets and axes.
"""

from __future__ import annotations

import importlib
import importlib.util

from tokendraw.tools import operation_names
from tokendraw_bench.operation import BenchOperation


def names() -> tuple[str, ...]:
    """Return the names of the operations that can be timed, in the order of the core's registry."""
    return tuple(
        name for name in operation_names() if importlib.util.find_spec(f"{__name__}.{name}") is not None
    )


def get(name: str) -> BenchOperation:
    """Return the record of an operation that can be timed."""
    found: BenchOperation = importlib.import_module(f"{__name__}.{name}").BENCH
    return found
