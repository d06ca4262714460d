"""Backends of a test's own in the place of those that were negotiated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fake_candidates import LAPTOP
from tokendraw import operations
from tokendraw.calls.dispatcher import Dispatcher
from tokendraw.calls.selection import LoadedBackend, Selection
from tokendraw.resolution import Choice, Resolution


def loaded(
    name: str, backend: Any, capabilities: Any = None, *, operation: str = "sample", need: Any = None
) -> LoadedBackend:
    """A backend as it is loaded; without capabilities it serves every call."""
    record = operations.get(operation)
    unsupported = ()
    if capabilities is not None:
        unsupported = record.unsupported(capabilities, record.need() if need is None else need)
    return LoadedBackend(name, backend, capabilities, unsupported)


def selection_of(
    backend: LoadedBackend,
    companion: LoadedBackend | None = None,
    *,
    operation: str = "sample",
    need: Any = None,
) -> Selection:
    """A selection of backends that nothing was decided about."""
    resolution = Resolution(
        operation=operation,
        host=LAPTOP,
        need=operations.get(operation).need() if need is None else need,
        choice=Choice(),
        chosen=backend.name,
        companion=None if companion is None else companion.name,
        decisions=(),
    )
    return Selection(resolution=resolution, backend=backend, companion=companion)


def select(dispatcher: Dispatcher, backend: LoadedBackend | None = None, **changes: Any) -> None:
    """Have a dispatcher use a backend, or another selection, from here on."""
    if backend is not None:
        changes["backend"] = backend
    dispatcher._selection = replace(dispatcher.selection, **changes)


def substitute(dispatcher: Dispatcher, backend: Any, name: str | None = None) -> None:
    """Have a dispatcher call an object in the place of the selected backend's, with the same capabilities."""
    select(
        dispatcher, replace(dispatcher.selection.backend, object=backend, **({"name": name} if name else {}))
    )
