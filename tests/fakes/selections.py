"""Selections of a test's backends, without a negotiation."""

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
    """Build a loaded backend; without capabilities it serves every call."""
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
    """Build a selection of a backend and a companion, without decisions."""
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
    """Replace the selected backend or other fields of a dispatcher's selection."""
    if backend is not None:
        changes["backend"] = backend
    dispatcher._selection = replace(dispatcher.selection, **changes)


def substitute(dispatcher: Dispatcher, backend: Any, name: str | None = None) -> None:
    """Replace the object of a dispatcher's selected backend, and keep the capabilities."""
    select(
        dispatcher, replace(dispatcher.selection.backend, object=backend, **({"name": name} if name else {}))
    )
