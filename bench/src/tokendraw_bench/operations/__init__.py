"""Records of timed operations: a module for each of the core's, named like it; others are made of functions of tensors.

``BENCH`` of a module is a :class:`tokendraw_bench.operation.BenchOperation`. Importing a module imports no torch: the
command line reads presets and axes.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util

from tokendraw import InvalidParameterError
from tokendraw.tools import find_operation, one_of, operation_names
from tokendraw_bench.operation import BenchOperation

NAMES = ("sample", "verify", "process_logits")
"""Operations with a module."""


def names() -> tuple[str, ...]:
    """List the timed operations: those with a module, then those of other distributions."""
    others = [name for name in operation_names() if name not in NAMES and find_operation(name).functions()]
    return (*NAMES, *others)


@functools.cache
def get(name: str) -> BenchOperation:
    """Load the record of a timed operation, or make it.

    :raises InvalidParameterError: there is no such operation, or none that is timed.
    """
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        record: BenchOperation = importlib.import_module(f"{__name__}.{name}").BENCH
        return record
    functions = find_operation(name).functions()
    if not functions:
        raise InvalidParameterError(
            f"'operation' needs {one_of(names())}, found {name!r}. Pass one of these."
        )
    from tokendraw_bench.tensor_functions import bench_of

    return bench_of(name, functions)
