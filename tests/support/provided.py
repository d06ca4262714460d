"""A provider of an operation around a backend of one's own, on a CPU."""

from typing import Any

from routing import CPU
from selections import loaded, selection_of
from tokendraw import operations
from tokendraw.calls.negotiator import Negotiator


def provider_of(
    operation: str, backend: Any, capabilities: Any, companion: Any = None, companion_capabilities: Any = None
) -> Any:
    """What ``tokendraw.load(operation, "acme")`` returns where that is ``backend``, maybe with a companion "beta"."""
    record = operations.get(operation)
    selection = selection_of(
        loaded("acme", backend, capabilities, operation=operation),
        None if companion is None else loaded("beta", companion, companion_capabilities, operation=operation),
        operation=operation,
    )
    return record.provider()(record, Negotiator(CPU, record.need()), selection)
