"""Lists the entry points of tokendraw's groups and their distributions, without running any of their code.

The core walks them itself, since a loader that stops at the first broken plugin would let one distribution switch off
all others. Versions come from metadata, never from an import and never from ``find_spec``: a folder or another project
may have the same import name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import importlib_metadata
from packaging.utils import canonicalize_name

from tokendraw.backends.description.plugin_info import NAME_RULE, is_name
from tokendraw.backends.resolution.admission import is_first_party
from tokendraw.backends.resolution.candidate import Candidate, State
from tokendraw.errors.formatting import format_value, is_printable, printable

PLUGIN_GROUP = "tokendraw.plugins"
FILTER_GROUP = "tokendraw.filters"
"""Entry point group of filters from moments: see :mod:`tokendraw.filters`."""
OPERATION_GROUP = "tokendraw.operations"
"""Entry point group of operations beside the core's own: see :class:`tokendraw.plugin.Operation`."""


class Declaration(NamedTuple):
    """An entry point as the metadata of a distribution declare it."""

    name: str
    value: str
    distribution: str
    """Name of the distribution; "" where damaged metadata do not tell."""
    version: str
    folder: str
    """Where the distribution lies."""


def declarations(group: str) -> Iterator[Declaration]:
    """Yield every entry point of a group, once for each name in a distribution.

    Of a distribution that lies on ``sys.path`` twice the first copy counts, as for an import.
    """
    seen: set[str] = set()
    for distribution in importlib_metadata.distributions():
        try:
            found = [*distribution.entry_points.select(group=group)]
        except Exception:  # another project's malformed entry_points.txt is not ours to report
            continue
        if not found:
            continue
        name, folder = _read(distribution, "name"), str(distribution.locate_file(""))
        version = _read(distribution, "version") if name else ""
        if (key := canonicalize_name(name) or folder) not in seen:
            seen.add(key)
            entries = {entry_point.name: entry_point.value for entry_point in reversed(found)}
            yield from (Declaration(*entry, name, version, folder) for entry in entries.items())


def _read(distribution: Any, field: str) -> str:
    try:
        return getattr(distribution, field) or ""
    except Exception:  # which one depends on the damage of the metadata and on the library's version
        return ""


def fault_of(
    declaration: Declaration, fits: Callable[[str], bool] = is_name, rule: str = NAME_RULE
) -> str | None:
    """Find the fault of a declaration in its distribution, name or form; None if there is no fault.

    :param fits: whether the name is one, as ``rule`` says in words.
    """
    if not declaration.distribution:
        place = format_value(declaration.folder)
        return f"needs the metadata of its distribution, found none in {place}; reinstall it"
    if not fits(declaration.name):
        return f"its name needs {rule}, found {format_value(declaration.name)}; rename the entry point"
    if not is_printable(declaration.value):
        value = format_value(declaration.value)
        return f"its entry point needs to be package.module:object, found {value}; correct it"
    return None


def printable_name(declaration: Declaration) -> str:
    """Make the name of an entry point printable; ``''`` stands for an empty name."""
    return printable(declaration.name) or "''"


def printed(declaration: Declaration) -> dict[str, Any]:
    """Return the fields of an :class:`~tokendraw.backends.resolution.candidate.Extension`, fit to print."""
    return {
        "name": printable_name(declaration),
        "distribution": printable(declaration.distribution),
        "version": printable(declaration.version),
        "entry_point": printable(declaration.value),
    }


def find_entry_points() -> tuple[Candidate, ...]:
    """List every entry point of plugins, sorted by name, without running any plugin's code."""
    candidates = map(_candidate, declarations(PLUGIN_GROUP))
    return tuple(sorted(candidates, key=lambda c: (c.name, c.distribution, c.version)))


def _candidate(declaration: Declaration) -> Candidate:
    fault = fault_of(declaration)
    return Candidate(
        state=State.FOUND if fault is None else State.BROKEN,
        reason=fault,
        first_party=is_first_party(declaration.name, declaration.distribution),
        **printed(declaration),
    )


def installed_version(distribution: str) -> str | None:
    """Read the installed version of a distribution; ``""`` if the metadata hold none, None if not installed."""
    try:
        return printable(_read(importlib_metadata.distribution(distribution), "version"))
    except importlib_metadata.PackageNotFoundError:
        return None
