"""Checks and words about the installed version of the library behind a plugin, from the plugin's table of versions.

A version outside the range is not used, nor is one whose row in the plugin's table refuses it. The others are: a tested
one silently, an untested one with a warning. What the plugin found in the library's files beats the version's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tokendraw.backends.description import Release, Upstream
from tokendraw.errors import one_of


def reason_against(upstream: Upstream, installed: str | None, operation: str) -> str | None:
    """State the reason against the installed version in an operation; None for a version in use."""
    needed = f"needs {upstream.distribution} {upstream.versions}".rstrip()
    if installed is None:
        install = f"pip install '{requirement(upstream, installed, operation)}'"
        return f"{needed}, found it not installed; run `{install}`"
    if not is_version(installed):
        return f"{needed}, found the version {installed!r}, which is no PEP 440 version; reinstall it"
    if is_in_range(upstream, installed):
        return refusal(upstream, installed, operation) or refusal(upstream, installed, None)
    rows = (in_force(upstream, installed, about).row for about in (operation, None))
    why = next((f", which {row.says}" for row in rows if row is not None and row.refused), "")
    return f"{needed}, found {installed}{why}"


def refusal(upstream: Upstream, installed: str, operation: str | None) -> str | None:
    """State the reason of the rows about one operation, or about all, to refuse a version; None without a refusal."""
    row, _, seen = in_force(upstream, installed, operation)
    if row is None or not row.refused:
        return None
    used = one_of(_used(upstream, operation))
    return f"needs {upstream.distribution} {used}, found {installed}, which {row.says}{seen}"


def requirement(upstream: Upstream, installed: str | None, operation: str) -> str:
    """Write the requirement for pip that replaces a refused version."""
    versions = [upstream.versions]
    if installed is not None and is_version(installed) and is_in_range(upstream, installed):
        about = operation if refusal(upstream, installed, operation) else None
        versions += list(_used(upstream, about))[-1:]
    return f"{upstream.distribution}{','.join(filter(None, versions))}"


def behaviour(upstream: Upstream, installed: str | None, operation: str) -> str | None:
    """Describe the installed version in an operation by its row: ``acme-kernels 2.1 packs layout v1``."""
    if installed is None:
        return None
    _, words, seen = in_force(upstream, installed, operation)
    return f"{upstream.distribution} {installed} {words}{seen}" if words else None


def would_change(upstream: Upstream, installed: str | None) -> str:
    """Write the differences between the installed and the other version, by the table of releases."""
    known_versions = [row.since for row in upstream.releases if not row.refused and row.since != "0"]
    to = max(filter(is_version, upstream.tested or known_versions), key=Version, default=None)
    if installed is None or not is_version(installed):
        return "unknown"
    if is_tested(upstream, installed):
        is_same = "nothing: this version is tested"
    else:
        is_same = "unknown" if to is None else "nothing that is known; this version is untested"
    changes = []
    for operation in dict.fromkeys(row.operation for row in upstream.releases if to is not None):
        words, row = in_force(upstream, installed, operation).words, release_of(upstream, str(to), operation)
        if row is not None and words and words != row.says:
            changes.append(f"{to} {row.says} where {installed} {words}{row.change and f': {row.change}'}")
    return "; ".join(changes) or is_same


class InForce(NamedTuple):
    """What holds of a version in one operation or in all: of its number, unless its files behave like another row."""

    row: Release | None
    words: str | None
    seen: str
    """`` by its files`` where these disagree with the row of the number."""


def in_force(upstream: Upstream, installed: str, operation: str | None) -> InForce:
    row, found = release_of(upstream, installed, operation), upstream.found.get(operation or "")
    if row is None or not found or row.says == found:
        return InForce(row, found or (row.says if row else None), "")
    as_found = (other for other in _rows(upstream, operation) if other.says == found)
    return InForce(next(as_found, None), found, " by its files")


def release_of(upstream: Upstream, version: str, operation: str | None) -> Release | None:
    """Find the row about a version, by its number alone.

    :param operation: the operation that rows have to be about; None: all of them.
    :return: None if there are no such rows, or if the version is none of PEP 440.
    """
    if not is_version(version):
        return None
    reached = Version(version)
    # The first developmental release is the least of all that belong to one.
    rows = [row for row in _rows(upstream, operation) if Version(f"{row.since}.dev0") <= reached]
    return rows[-1] if rows else None


def is_in_range(upstream: Upstream, version: str) -> bool:
    return SpecifierSet(upstream.versions).contains(version, prereleases=True)


def is_tested(upstream: Upstream, installed: str) -> bool:
    """Whether the plugin's authors tested this version; a local part such as ``+cu128`` is ignored."""
    public = Version(installed).public
    return any(tested_range(tested).contains(public, prereleases=True) for tested in upstream.tested)


def tested_range(tested: str) -> SpecifierSet:
    return SpecifierSet(f"=={Version(tested)}" if is_version(tested) else tested)


def is_version(installed: str) -> bool:
    try:
        Version(installed)
    except ValueError:  # InvalidVersion, or more digits than Python converts
        return False
    return True


def _rows(upstream: Upstream, operation: str | None) -> list[Release]:
    return [row for row in upstream.releases if row.operation == operation]


def _used(upstream: Upstream, operation: str | None) -> Iterator[str]:
    """Write the ranges of the releases in use: ``<2.3``, ``>=2.4``."""
    since = None
    for row in _rows(upstream, operation):
        if row.refused and since is not None:
            yield f"{since}<{row.since}"
        lower = "" if row.since == "0" else f">={row.since},"
        since = None if row.refused else lower if since is None else since
    if since is not None:
        yield since.rstrip(",")
