"""Checks a plugin's description of its upstream: range of versions, tested versions, and table of releases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tokendraw.backends.description.capabilities import MAX_WORD_CHARS, are_words
from tokendraw.backends.description.plugin_info import MAX_ITEMS, Release, Upstream
from tokendraw.backends.resolution.upstream import is_in_range, release_of
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import format_value, is_printable


def check_upstream(upstream: Upstream) -> Upstream:
    """Check and copy a plugin's description of its upstream.

    :raises PluginError: the message is a reason in words.
    """
    distribution, versions, tested = upstream.distribution, upstream.versions, upstream.tested
    if not is_printable(distribution, MAX_WORD_CHARS) or not _parses(_distribution, distribution):
        raise PluginError(
            f"Upstream.distribution needs a distribution's name, found {format_value(distribution)}"
        )
    if not is_printable(versions, MAX_WORD_CHARS) or not _parses(SpecifierSet, versions):
        raise PluginError(f"Upstream.versions needs a PEP 440 range, found {format_value(versions)}")
    if (
        not are_words(tested)
        or len(tested) > MAX_ITEMS
        or not all(_parses(Version, version) for version in tested)
    ):
        raise PluginError(f"Upstream.tested needs a tuple of PEP 440 versions, found {format_value(tested)}")
    releases = upstream.releases
    if not isinstance(releases, tuple) or len(releases) > MAX_ITEMS:
        raise PluginError(
            f"Upstream.releases needs a tuple of at most {MAX_ITEMS} Release, found {format_value(releases)}"
        )
    copy = Upstream(distribution, versions, tested, tuple(map(_check_row, releases)), _check_found(upstream))
    for operation in dict.fromkeys(row.operation for row in copy.releases):
        _check_order([row for row in copy.releases if row.operation == operation])
    for row in copy.releases:
        _check_decision(row, copy)
    return copy


def _check_row(row: object) -> Release:
    if not isinstance(row, Release):
        raise PluginError(f"Upstream.releases needs a tuple of Release, found {format_value(row)} in it")
    if not is_printable(row.since, MAX_WORD_CHARS) or not _parses(_release, row.since):
        raise PluginError(f"Release.since needs a final or post release, found {format_value(row.since)}")
    if not is_printable(row.says) or not row.says:
        raise PluginError(
            f"Release.says of {row.since} needs one printable line, found {format_value(row.says)}"
        )
    if row.operation is not None and not (row.operation and is_printable(row.operation, MAX_WORD_CHARS)):
        raise PluginError(
            f"Release.operation of {row.since} needs a name or None, found {format_value(row.operation)}"
        )
    if type(row.refused) is not bool:
        raise PluginError(
            f"Release.refused of {row.since} needs True or False, found {format_value(row.refused)}"
        )
    if not is_printable(row.change):
        raise PluginError(
            f"Release.change of {row.since} needs one printable line, found {format_value(row.change)}"
        )
    return Release(row.since, row.says, row.operation, row.refused, row.change)


def _check_found(upstream: Upstream) -> dict[str, str]:
    found = upstream.found
    if (
        not isinstance(found, Mapping)
        or len(found) > MAX_ITEMS
        or not all(is_printable(words) and words for words in found.values())
    ):
        raise PluginError(f"Upstream.found needs words by operation, found {format_value(found)}")
    about = {row.operation for row in upstream.releases}
    for operation in found:
        if operation is None or operation not in about:
            raise PluginError(
                "Upstream.found needs operations that Upstream.releases has rows about, "
                f"found {format_value(operation)}"
            )
    return dict(found)


def _check_order(rows: list[Release]) -> None:
    """Check that the rows about an operation cover each version exactly once."""
    about = rows[0].operation or "all operations"
    if Version(rows[0].since) != Version("0"):
        raise PluginError(
            f"Upstream.releases about {about} needs to begin with the release '0', found {rows[0].since!r}"
        )
    if all(row.refused for row in rows):
        raise PluginError(f"Upstream.releases about {about} needs a row that is used, found none")
    for row, following in itertools.pairwise(rows):
        if Version(following.since) <= Version(row.since):
            raise PluginError(
                f"Upstream.releases about {about} needs ascending releases, "
                f"found {following.since!r} behind {row.since!r}"
            )


def _check_decision(row: Release, upstream: Upstream) -> None:
    """Check that neither the range nor a row about all operations refuses the releases of a row in use."""
    if row.refused or Version(row.since) == Version("0"):
        return
    about = row.operation or "all operations"
    if not is_in_range(upstream, row.since):
        raise PluginError(
            f"Upstream.releases about {about} needs used releases within {upstream.versions!r}, found {row.since!r}"
        )
    above = release_of(upstream, row.since, None)
    if above is not None and above.refused:
        raise PluginError(
            f"Upstream.releases about {about} uses {row.since!r}, which the row {above.since!r} refuses for all "
            "operations"
        )


def _distribution(name: str) -> str:
    return canonicalize_name(name, validate=True)


def _release(text: str) -> Version:
    version = Version(text)
    if version.is_prerelease or version.local:
        raise ValueError(text)
    return version


def _parses(kind: Callable[[str], object], text: str) -> bool:
    try:
        kind(text)
    except ValueError:  # as of packaging, and of a number with more digits than Python converts
        return False
    return True
