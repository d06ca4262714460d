"""The operations served by plugins: the core's own, a record and a line each, and those that distributions bring.

Nothing else in the core knows an operation by its name. Entry points of the group ``tokendraw.operations`` are looked
for when a name is asked for that is none of the core's own, and when all operations are listed.
"""

from __future__ import annotations

import functools
import pkgutil
from typing import Any

from tokendraw.backends.description import HostCapabilities, Operation
from tokendraw.backends.discovery.discover import find_extensions, sources
from tokendraw.backends.discovery.entry_points import OPERATION_GROUP
from tokendraw.backends.resolution.candidate import FIRST_PARTY_OPERATIONS, Extension, State
from tokendraw.errors import (
    InvalidParameterError,
    PluginError,
    format_value,
    how_to_install,
    one_of,
    type_name,
)

RECORDS: dict[str, str] = {
    "sample": "tokendraw.operations.records:SAMPLE",
    "verify": "tokendraw.operations.records:VERIFY",
    "score": "tokendraw.operations.records:SCORE",
    "process_logits": "tokendraw.edits:OPERATION",
}


def operation_names() -> tuple[str, ...]:
    """List the operations that plugins can serve: the core's own in the order of the registry, then all others."""
    return (*RECORDS, *_installed(*sources()))


def installed_operations() -> tuple[Extension, ...]:
    """List every operation that another distribution brings, sorted by name, with its state and reason."""
    return tuple(record for record, _ in _look())


def find_operation(name: str) -> Operation:
    """Look up an operation.

    :raises InvalidParameterError: there is none of that name, or it cannot be used; says which there are, or why not.
    """
    if isinstance(name, str) and name in RECORDS:
        own: Operation = pkgutil.resolve_name(RECORDS[name])
        return own
    found = _find(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidParameterError(_refusal(name))
    return found


def capabilities_type(name: str) -> type[HostCapabilities]:
    """Look up the type of capabilities in an operation; of an unknown operation only those of the host are read."""
    if name not in RECORDS and _find(name) is None:
        return HostCapabilities
    return find_operation(name).capabilities


def is_own(operation: Operation) -> bool:
    """Whether it is an operation of the core, which ``TOKENDRAW_SAMPLER`` and the configuration's ``sampler`` bind."""
    return operation.name in RECORDS


def _find(name: str) -> Operation | None:
    if name not in _installed(*sources()):
        _installed.cache_clear()  # it may have been installed meanwhile
    return _installed(*sources()).get(name)


@functools.lru_cache(maxsize=4)
def _installed(variables: object, path: object) -> dict[str, Operation]:
    return {record.name: operation for record, operation in _look() if operation is not None}


def _look() -> list[tuple[Extension, Operation | None]]:
    owners = {**dict.fromkeys(RECORDS, "tokendraw"), **FIRST_PARTY_OPERATIONS}
    return find_extensions(OPERATION_GROUP, _checked, owners)


def _checked(record: Any, name: str, value: str) -> Operation:
    if not isinstance(record, Operation):
        raise PluginError(f"{value!r} needs to be a tokendraw.plugin.Operation, found {type_name(record)}")
    if record.name != name:
        found = format_value(record.name)
        raise PluginError(f"{value!r} needs the name of its entry point, {name!r}, found {found}")
    return record


def _refusal(name: object) -> str:
    for record in installed_operations():
        if record.name == name and record.state is not State.AVAILABLE:
            return (
                f"The operation {record.name!r} of {record.distribution} is {record.state}: {record.reason}."
            )
    needed = f"'operation' needs {one_of(operation_names())}, found {name!r}"
    if isinstance(name, str) and name in FIRST_PARTY_OPERATIONS:
        owner = FIRST_PARTY_OPERATIONS[name]
        return f"{needed}, which the distribution {owner} brings; run {how_to_install(owner)}."
    return f"{needed}. Pass one of these."
