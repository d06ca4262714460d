"""Lists the entry points of plugins and their distributions, without running any of their code.

The core walks them itself, since a loader that stops at the first broken plugin would let one distribution switch off
all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import importlib_metadata
from packaging.utils import canonicalize_name

from tokendraw.backends.description.plugin_info import NAME_RULE, is_name
from tokendraw.backends.discovery.hooks import ENTRY_POINT_GROUP
from tokendraw.backends.resolution.admission import is_first_party
from tokendraw.backends.resolution.candidate import Candidate, State
from tokendraw.errors.formatting import format_value, is_printable, printable


def installed_candidates() -> tuple[Candidate, ...]:
    """List every entry point of the group, sorted by name, without running any plugin's code."""
    candidates: list[Candidate] = []
    seen: set[str] = set()
    for distribution in importlib_metadata.distributions():
        entry_points = tuple(_entry_points(distribution))
        if not entry_points:
            continue
        name, version = _identity(distribution)
        # Imports find the first on sys.path; a later copy of the same distribution is no rival of it.
        key = canonicalize_name(name) or str(distribution.locate_file(""))
        if key in seen:
            continue
        seen.add(key)
        entries = {entry_point.name: entry_point.value for entry_point in reversed(entry_points)}
        candidates += [_candidate(n, value, name, version, distribution) for n, value in entries.items()]
    return tuple(sorted(candidates, key=lambda c: (c.name, c.distribution, c.version)))


def _candidate(name: str, value: str, owner: str, version: str, distribution: Any) -> Candidate:
    candidate = Candidate(
        name=name if is_name(name) else printable(name) or "''",
        state=State.FOUND,
        distribution=printable(owner),
        version=printable(version),
        entry_point=printable(value),
        first_party=is_first_party(name, owner),
    )
    reason = None
    if not owner:
        folder = str(distribution.locate_file(""))
        reason = f"needs the metadata of its distribution, found none in {format_value(folder)}; reinstall it"
    elif not is_name(name):
        reason = f"its name needs {NAME_RULE}, found {format_value(name)}; rename the entry point"
    elif not is_printable(value):
        reason = f"its entry point needs to be package.module:object, found {format_value(value)}; correct it"
    return candidate if reason is None else replace(candidate, state=State.BROKEN, reason=reason)


def _entry_points(distribution: Any) -> Iterator[importlib_metadata.EntryPoint]:
    try:
        yield from distribution.entry_points.select(group=ENTRY_POINT_GROUP)
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
