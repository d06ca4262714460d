"""Records of timed operations, in a module for each, named like the operation in the core's registry.

``BENCH`` of a module is a :class:`tokendraw_bench.operation.BenchOperation`. Importing a module imports no torch: the
command line reads presets and axes.
"""

from __future__ import annotations

import importlib
import importlib.util

from tokendraw.tools import operation_names
from tokendraw_bench.operation import BenchOperation


def names() -> tuple[str, ...]:
    """List the timed operations in the order of the core's registry."""
    return tuple(
        name for name in operation_names() if importlib.util.find_spec(f"{__name__}.{name}") is not None
    )


def get(name: str) -> BenchOperation:
    """Load the record of a timed operation."""
    record: BenchOperation = importlib.import_module(f"{__name__}.{name}").BENCH
    return record
