"""The operations served by plugins: a folder and a line each.

Nothing else in the core knows an operation by its name. A record is loaded when it is first asked for, so that the
folders may import what they like of the rooms below them.
"""

from __future__ import annotations

import importlib

from tokendraw.backends.description.capabilities import HostCapabilities
from tokendraw.backends.description.operation import Operation
from tokendraw.errors.exceptions import InvalidParameterError
from tokendraw.errors.formatting import one_of

FOLDERS: dict[str, str] = {
    "sample": "tokendraw.operations.sample",
    "verify": "tokendraw.operations.verify",
    "score": "tokendraw.operations.score",
    "plan_paged_kv": "tokendraw.operations.plan_paged_kv",
    "pack_sm90_w4": "tokendraw.operations.pack_sm90_w4",
    "process_logits": "tokendraw.operations.process_logits",
}
"""Packages by the name of an operation; the ``OPERATION`` of each is the record."""


def operation_names() -> tuple[str, ...]:
    """List the operations that plugins can serve, in the order of the registry."""
    return tuple(FOLDERS)


def each() -> tuple[Operation, ...]:
    """List the operations in the order of the registry."""
    return tuple(map(find_operation, FOLDERS))


def find_operation(name: str) -> Operation:
    """Look up an operation.

    :raises InvalidParameterError: there is none of that name; the message lists those that there are.
    """
    if not isinstance(name, str) or name not in FOLDERS:
        raise InvalidParameterError(
            f"'operation' needs {one_of(FOLDERS)}, found {name!r}. Pass one of these."
        )
    operation: Operation = importlib.import_module(FOLDERS[name]).OPERATION
    return operation


def capabilities_type(name: str) -> type[HostCapabilities]:
    """Look up the type of capabilities in an operation; of an unknown operation only those of the host are read."""
    return find_operation(name).capabilities if name in FOLDERS else HostCapabilities
