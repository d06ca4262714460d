"""Lists the entry points of tokendraw's groups and their distributions, without running any of their code.

The core walks them itself, since a loader that stops at the first broken plugin would let one distribution switch off
all others. Versions come from metadata, never from an import and never from ``find_spec``: a folder or another project
may have the same import name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import importlib_metadata
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

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
    """Yield every entry point of a group, once for each name in a distribution."""
    copies: dict[str, list[list[Declaration]]] = {}
    for distribution in importlib_metadata.distributions():
        entry_points = tuple(_entry_points(distribution, group))
        if not entry_points:
            continue
        name, version = _identity(distribution)
        folder = str(distribution.locate_file(""))
        entries = {entry_point.name: entry_point.value for entry_point in reversed(entry_points)}
        copy = [Declaration(entry, value, name, version, folder) for entry, value in entries.items()]
        copies.setdefault(canonicalize_name(name) or folder, []).append(copy)
    for same in copies.values():
        yield from same[0] if len(same) == 1 else _imported(same)


def _imported(copies: Sequence[Sequence[Declaration]]) -> Sequence[Declaration]:
    """Return the copy of a distribution whose code an import finds; another is no rival of it.

    That is the first on ``sys.path`` with its module beside it. Of two in one folder, as an interrupted upgrade leaves
    them, it is the newer.
    """

    def has_module(copy: Sequence[Declaration]) -> bool:
        top = Path(copy[0].folder, copy[0].value.partition(":")[0].partition(".")[0].strip())
        return top.is_dir() or top.with_suffix(".py").is_file()

    candidates = [copy for copy in copies if has_module(copy)] or copies
    in_folder = [copy for copy in candidates if copy[0].folder == candidates[0][0].folder]
    return max(in_folder, key=lambda copy: _order(copy[0].version))


def _order(version: str) -> Version:
    """Order versions; the least is one that is none of PEP 440."""
    try:
        return Version(version)
    except InvalidVersion:
        return Version("0.dev0")


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


def _entry_points(distribution: Any, group: str) -> Iterator[importlib_metadata.EntryPoint]:
    try:
        yield from distribution.entry_points.select(group=group)
    except Exception:  # another project's malformed entry_points.txt is not ours to report
        return


def _identity(distribution: Any) -> tuple[str, str]:
    """Read name and version; damaged metadata give empty strings."""
    try:
        name = distribution.name or ""
    except Exception:  # which one depends on the damage and on the library's version
        return "", ""
    try:
        return name, distribution.version or ""
    except Exception:
        return name, ""


def installed_version(distribution: str) -> str | None:
    """Read the installed version of a distribution; ``""`` if the metadata hold none, None if not installed."""
    try:
        version: str | None = importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None
    except Exception:  # damaged metadata: KeyError, FileNotFoundError, UnicodeDecodeError, by their damage
        return ""
    return printable(version or "")
