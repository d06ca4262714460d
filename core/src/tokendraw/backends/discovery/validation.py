"""Checks a plugin's description against the plugin API before its first use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tokendraw.backends.declared import rules_of
from tokendraw.backends.description import (
    MAX_PRIORITY,
    MAX_WORD_CHARS,
    HostCapabilities,
    PluginInfo,
    Release,
    Upstream,
    are_words,
)
from tokendraw.backends.resolution.upstream import is_in_range, release_of, tested_range
from tokendraw.errors import MAX_TEXT_CHARS, PluginError, format_value, is_printable, one_of, printable

CapabilitiesType: TypeAlias = Callable[[str], type[HostCapabilities]]


def _require(fits: bool, subject: str, needed: str, value: object) -> None:
    if not fits:
        raise PluginError(f"{subject} needs {needed}, found {format_value(value)}")


def check_identity(info: object, name: str) -> PluginInfo:
    if not isinstance(info, PluginInfo):
        found = _kind(info)
        raise PluginError(f"tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found {found}")
    _require(info.name == name, "PluginInfo.name", f"to be the entry point's name {name!r}", info.name)
    for field in ("api_version", "priority"):
        number = getattr(info, field)
        is_in_bounds = type(number) is int and abs(number) <= MAX_PRIORITY
        needed = f"an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        _require(is_in_bounds, f"PluginInfo.{field}", needed, number)
    return info


def check_description(info: PluginInfo, type_of: CapabilitiesType) -> PluginInfo:
    """Check a description of sound identity, which has to make sense only if the API version is ours."""
    for field in ("summary", "verified", "kernels"):
        needed = f"one printable line of at most {MAX_TEXT_CHARS} characters"
        _require(is_printable(getattr(info, field)), f"PluginInfo.{field}", needed, getattr(info, field))
    operations, upstream, failures = info.operations, info.upstream, info.expected_failures
    has_some = isinstance(operations, Mapping) and len(operations) > 0
    _require(has_some, "PluginInfo.operations", "at least one operation", operations)
    copies = {name: _capabilities(name, offered, type_of) for name, offered in operations.items()}
    are_lines = isinstance(failures, Mapping) and all(map(is_printable, (*failures, *failures.values())))
    has_reasons = are_lines and all(text.strip() for text in failures.values())
    _require(has_reasons, "PluginInfo.expected_failures", "a reason by the name of a property", failures)
    if isinstance(upstream, Upstream):
        check_upstream(upstream)
    elif upstream is not None:
        found = _kind(upstream)
        raise PluginError(f"PluginInfo.upstream needs a tokendraw.plugin.Upstream or None, found {found}")
    return replace(info, operations=copies)


def _capabilities(name: str, offered: object, type_of: CapabilitiesType) -> HostCapabilities:
    """Copy the capabilities of an operation; of an operation unknown to this core, the host's part alone."""
    if not is_printable(name, MAX_WORD_CHARS) or not isinstance(offered, HostCapabilities):
        found = _kind(offered) if is_printable(name, MAX_WORD_CHARS) else format_value(name)
        raise PluginError(f"PluginInfo.operations needs Capabilities by name, found {found}")
    declared = type_of(name)
    if not isinstance(offered, declared):
        needed, found = declared.__name__, _kind(offered)
        raise PluginError(f"PluginInfo.operations needs {needed} for the operation {name!r}, found {found}")
    values = {}
    for field, rule in rules_of(declared).items():
        value = values[field] = getattr(offered, field)
        subject = f"{declared.__name__}.{field} of the operation {name!r}"
        _require(rule.fits(value), subject, one_of(rule.needed), value)
    return declared(**values)


def check_upstream(upstream: Upstream) -> Upstream:
    name, versions = upstream.distribution, upstream.versions
    tested, releases, found = upstream.tested, upstream.releases, upstream.found
    is_name = partial(canonicalize_name, validate=True)
    _require(_parses(is_name, name), "Upstream.distribution", "a distribution's name", name)
    _require(_parses(SpecifierSet, versions), "Upstream.versions", "a PEP 440 range", versions)
    are_versions = are_words(tested) and all(_parses(tested_range, text) for text in tested)
    _require(are_versions, "Upstream.tested", "a tuple of PEP 440 versions or ranges", tested)
    _require(isinstance(releases, tuple), "Upstream.releases", "a tuple of Release", releases)
    for row in releases:
        _check_row(row)
    operations = dict.fromkeys(row.operation for row in releases)
    are_told = isinstance(found, Mapping) and all(words and is_printable(words) for words in found.values())
    _require(are_told, "Upstream.found", "words by operation", found)
    for about in found:
        is_known = about is not None and about in operations
        _require(is_known, "Upstream.found", "operations that Upstream.releases has rows about", about)
    for operation in operations:
        rows = [row for row in releases if row.operation == operation]
        _check_rows(rows, upstream, f"Upstream.releases about {operation or 'all operations'}")
    return upstream


def _check_row(row: object) -> None:
    if not isinstance(row, Release):
        raise PluginError(f"Upstream.releases needs a tuple of Release, found {format_value(row)} in it")
    _require(_parses(_release, row.since), "Release.since", "a final or post release", row.since)
    has_name = bool(row.operation) and is_printable(row.operation, MAX_WORD_CHARS)
    for field, needed, fits in (
        ("says", "one printable line", bool(row.says) and is_printable(row.says)),
        ("operation", "a name or None", row.operation is None or has_name),
        ("refused", "True or False", type(row.refused) is bool),
        ("change", "one printable line", is_printable(row.change)),
    ):
        _require(fits, f"Release.{field} of {row.since}", needed, getattr(row, field))


def _check_rows(rows: Sequence[Release], upstream: Upstream, about: str) -> None:
    """Check that rows cover each version once, and that neither the range nor a row about all refuses one in use."""
    begins = Version(rows[0].since) == Version("0")
    _require(begins, about, "to begin with the release '0'", rows[0].since)
    if all(row.refused for row in rows):
        raise PluginError(f"{about} needs a row that is used, found none")
    for row, following in itertools.pairwise(rows):
        if Version(following.since) <= Version(row.since):
            raise PluginError(
                f"{about} needs ascending releases, found {following.since!r} behind {row.since!r}"
            )
    for row in (row for row in rows[1:] if not row.refused):
        is_used, above = is_in_range(upstream, row.since), release_of(upstream, row.since, None)
        _require(is_used, about, f"used releases within {upstream.versions!r}", row.since)
        if above is not None and above.refused:
            raise PluginError(
                f"{about} uses {row.since!r}, which the row {above.since!r} refuses for all operations"
            )


def _release(text: str) -> Version:
    version = Version(text)
    if version.is_prerelease or version.local:
        raise ValueError(text)
    return version


def _parses(kind: Callable[[str], object], text: object) -> bool:
    if not is_printable(text, MAX_WORD_CHARS):
        return False
    try:
        kind(str(text))
    except ValueError:  # as of packaging, and of a number with more digits than Python converts
        return False
    return True


def _kind(value: object) -> str:
    return "None" if value is None else printable(type(value).__name__)
