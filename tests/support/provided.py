"""A provider of an operation around a backend of one's own, on a CPU."""

from typing import Any

from fake_candidates import LAPTOP
from routing import CPU
from tokendraw import operations
from tokendraw.calls.calls import Calls
from tokendraw.calls.routing import BuiltProvider, Serving
from tokendraw.calls.session import Session
from tokendraw.providers.provider import Provider
from tokendraw.resolution import Choice, Resolution


def provider_of(
    operation: str, backend: Any, capabilities: Any, companion: Any = None, companion_capabilities: Any = None
) -> Any:
    """What ``tokendraw.load(operation, "acme")`` returns where that is ``backend``, maybe with a companion "beta"."""
    record = operations.get(operation)
    resolution = Resolution(
        operation=operation,
        host=LAPTOP,
        need=record.need(),
        choice=Choice(),
        chosen="acme",
        companion=None if companion is None else "beta",
        decisions=(),
    )
    serving = Serving(
        resolution=resolution,
        chosen=BuiltProvider("acme", backend),
        companion=None if companion is None else BuiltProvider("beta", companion),
        capabilities=capabilities,
        companion_capabilities=companion_capabilities,
    )
    session = Session(CPU, record.need())
    return Provider(session, record, Calls(session, record, serving))
