"""Lists the entry points of tokendraw's groups and their distributions, without running any of their code.

The core walks them itself, since a loader that stops at the first broken plugin would let one distribution switch off
all others. Versions come from metadata, never from an import or ``find_spec``: a folder may have the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import importlib_metadata
from packaging.utils import canonicalize_name
from packaging.version import Version

from tokendraw.backends.description import NAME_RULE, is_name
from tokendraw.backends.resolution.candidate import Candidate, Extension, State, is_first_party
from tokendraw.backends.resolution.upstream import is_version
from tokendraw.errors import format_value, is_printable, printable

PLUGIN_GROUP = "tokendraw.plugins"
FILTER_GROUP = "tokendraw.filters"
OPERATION_GROUP = "tokendraw.operations"


def declarations(
    group: str, fits: Callable[[str], object] = is_name, rule: str = NAME_RULE
) -> Iterator[Extension]:
    """Yield every entry point of a group, once for each name in a distribution: found, or broken by its form alone."""
    for owner, version, folder, entries in _distributions(group):
        for name, value in entries.items():
            fault = None
            if not owner:
                place = format_value(folder)
                fault = f"needs the metadata of its distribution, found none in {place}; reinstall it"
            elif not fits(name):
                fault = f"its name needs {rule}, found {format_value(name)}; rename the entry point"
            elif not is_printable(value):
                needed = "its entry point needs to be package.module:object"
                fault = f"{needed}, found {format_value(value)}; correct it"
            yield Extension(
                name=printable(name) or "''",
                state=State.FOUND if fault is None else State.BROKEN,
                reason=fault,
                distribution=printable(owner),
                version=printable(version),
                entry_point=printable(value),
            )


def _distributions(group: str) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Return name, version, folder and entry points of each distribution that has some in the group.

    Of several copies of a distribution it is the one that an import finds: the first on ``sys.path`` with its module
    beside it; of two in one folder, as an interrupted upgrade leaves them, the newer.
    """
    folders: dict[str, int] = {}
    copies: dict[str, tuple[tuple[bool, int, Version], tuple[str, str, str, dict[str, str]]]] = {}
    for distribution in importlib_metadata.distributions():
        try:
            found = [*distribution.entry_points.select(group=group)]
        except Exception:  # another project's malformed entry_points.txt is not ours to report
            continue
        if not found:
            continue
        owner, folder = _read(distribution, "name"), str(distribution.locate_file(""))
        version = _read(distribution, "version") if owner else ""
        module = Path(folder, found[0].value.partition(":")[0].partition(".")[0].strip())
        has_module = module.is_dir() or module.with_suffix(".py").is_file()
        number = Version(version) if is_version(version) else Version("0.dev0")
        rank = has_module, -folders.setdefault(folder, len(folders)), number
        key = canonicalize_name(owner) or folder
        if key not in copies or rank > copies[key][0]:
            entries = {entry_point.name: entry_point.value for entry_point in reversed(found)}
            copies[key] = rank, (owner, version, folder, entries)
    return (copy for _, copy in copies.values())


def _read(distribution: Any, field: str) -> str:
    try:
        return getattr(distribution, field) or ""
    except Exception:  # which one depends on the damage of the metadata and on the library's version
        return ""


def find_entry_points() -> tuple[Candidate, ...]:
    """List every entry point of plugins, sorted by name, without running any plugin's code."""
    candidates = [
        Candidate(**vars(each), first_party=is_first_party(each.name, each.distribution))
        for each in declarations(PLUGIN_GROUP)
    ]
    return tuple(sorted(candidates, key=lambda c: (c.name, c.distribution, c.version)))


def installed_version(distribution: str) -> str | None:
    """Read the installed version of a distribution; ``""`` if the metadata hold none, None if not installed."""
    try:
        return printable(_read(importlib_metadata.distribution(distribution), "version"))
    except importlib_metadata.PackageNotFoundError:
        return None
