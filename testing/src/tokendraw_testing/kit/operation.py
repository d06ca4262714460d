"""The kit's record of each operation: ``KIT`` in the package named like the operation."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.random import Generator

from tokendraw.tools import find_operation, operation_names
from tokendraw_testing.kit.property import Property
from tokendraw_testing.kit.trial import Trial

Fuzz: TypeAlias = Callable[[Any, Generator, Trial], str]
"""Makes one random case from the generator alone, looks at it as a property's check does, and says what it looked at,
in words; raises Violation with the whole case in words."""


@dataclass(frozen=True, kw_only=True)
class OperationKit:
    """Properties and random cases of an operation."""

    view: type[Any]
    """Class of the properties' subject: a :class:`tokendraw_testing.kit.subject.OperationSubject`."""
    properties: tuple[Property, ...]
    """Properties in the order of a report: exact demands, statistics, then optional capabilities."""
    fuzz: Fuzz | None = None
    """Checks a random case within the capabilities; None: the kit has no random cases of the operation."""


@functools.cache
def find(operation: str) -> OperationKit | None:
    """Look up the kit of an operation, or make it of functions of tensors; None if neither is there."""
    home = f"{__package__.rpartition('.')[0]}.{operation}"
    if importlib.util.find_spec(home) is None:
        functions = find_operation(operation).functions()
        if not functions:
            return None
        maker = importlib.import_module(f"{__package__.rpartition('.')[0]}.tensor_functions")
        made: OperationKit = maker.kit_of(operation, functions)
        return made
    kit: OperationKit = importlib.import_module(home).KIT
    return kit


def properties(operation: str | None = None) -> tuple[Property, ...]:
    """List the properties of an operation, in the order of a report.

    :param operation: None: of every operation of the core's registry, one after the other.
    :raises InvalidParameterError: there is no such operation.
    """
    if operation is not None:
        find_operation(operation)
    names = operation_names() if operation is None else (operation,)
    return tuple(prop for name in names if (kit := find(name)) for prop in kit.properties)
