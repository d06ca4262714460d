"""Checks a plugin's description against the plugin API before its first use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TypeAlias

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tokendraw.backends.description.capabilities import MAX_WORD_CHARS, HostCapabilities, are_words
from tokendraw.backends.description.declared import rules_of
from tokendraw.backends.description.plugin_info import MAX_ITEMS, MAX_PRIORITY, PluginInfo, Release, Upstream
from tokendraw.backends.resolution.upstream import is_in_range, release_of, tested_range
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import MAX_TEXT_CHARS, format_value, is_printable, one_of, printable

CapabilitiesType: TypeAlias = Callable[[str], type[HostCapabilities]]
"""Looks up the type of capabilities in an operation by name."""


def _require(fits: bool, subject: str, needed: str, value: object) -> None:
    """Raise a PluginError in words unless a value fits."""
    if not fits:
        raise PluginError(f"{subject} needs {needed}, found {format_value(value)}")


def check_identity(info: object, name: str) -> PluginInfo:
    """Return ``info`` if it is the description of the plugin selected by users as ``name``.

    :raises PluginError: it is not; the message is a reason in words.
    """
    if not isinstance(info, PluginInfo):
        raise PluginError(
            f"tokendraw_describe needs to return a tokendraw.plugin.PluginInfo, found {_kind(info)}"
        )
    is_equal = type(info.name) is str and info.name == name
    _require(is_equal, "PluginInfo.name", f"to be the entry point's name {name!r}", info.name)
    for field in ("api_version", "priority"):
        number = getattr(info, field)
        is_in_bounds = type(number) is int and abs(number) <= MAX_PRIORITY
        needed = f"an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        _require(is_in_bounds, f"PluginInfo.{field}", needed, number)
    return info


def check_description(info: PluginInfo, type_of: CapabilitiesType) -> PluginInfo:
    """Check and copy a description of sound identity; later changes by the plugin do not reach the copy.

    The rest has to make sense only if the API version is ours.

    :param type_of: looks up the types of capabilities that plugins may offer.
    :raises PluginError: the message is a reason in words.
    """
    for field in ("summary", "verified", "kernels"):
        needed = f"one printable line of at most {MAX_TEXT_CHARS} characters"
        _require(is_printable(getattr(info, field)), f"PluginInfo.{field}", needed, getattr(info, field))
    operations, upstream = info.operations, info.upstream
    has_some = isinstance(operations, Mapping) and 0 < len(operations) <= MAX_ITEMS
    _require(has_some, "PluginInfo.operations", f"1 to {MAX_ITEMS} operations", operations)
    copies = {name: _capabilities(name, offered, type_of) for name, offered in operations.items()}
    if upstream is not None and not isinstance(upstream, Upstream):
        raise PluginError(
            f"PluginInfo.upstream needs a tokendraw.plugin.Upstream or None, found {_kind(upstream)}"
        )
    values = {field.name: getattr(info, field.name) for field in fields(PluginInfo)}
    values |= {"operations": copies, "upstream": upstream and check_upstream(upstream)}
    return PluginInfo(**values)


def _capabilities(name: object, offered: object, type_of: CapabilitiesType) -> HostCapabilities:
    """Copy the capabilities of an operation; of an operation unknown to this core, the host's part alone."""
    if not is_printable(name, MAX_WORD_CHARS) or not isinstance(offered, HostCapabilities):
        found = _kind(offered) if is_printable(name, MAX_WORD_CHARS) else format_value(name)
        raise PluginError(f"PluginInfo.operations needs Capabilities by name, found {found}")
    declared = type_of(str(name))
    if not isinstance(offered, declared):
        raise PluginError(
            f"PluginInfo.operations needs {declared.__name__} for the operation {name!r}, found {_kind(offered)}"
        )
    values = {}
    for field, rule in rules_of(declared).items():
        value = values[field] = getattr(offered, field)
        fits = rule.fits(value) and not (isinstance(value, tuple) and len(value) > MAX_ITEMS)
        _require(fits, f"{declared.__name__}.{field} of the operation {name!r}", one_of(rule.needed), value)
    return declared(**values)


def check_upstream(upstream: Upstream) -> Upstream:
    """Check and copy a plugin's description of the upstream: range, tested versions, and table of releases.

    :raises PluginError: the message is a reason in words.
    """
    name, versions = upstream.distribution, upstream.versions
    tested, releases = upstream.tested, upstream.releases
    is_name = partial(canonicalize_name, validate=True)
    _require(_parses(is_name, name), "Upstream.distribution", "a distribution's name", name)
    _require(_parses(SpecifierSet, versions), "Upstream.versions", "a PEP 440 range", versions)
    are_versions = are_words(tested) and len(tested) <= MAX_ITEMS
    are_versions = are_versions and all(_parses(tested_range, text) for text in tested)
    _require(are_versions, "Upstream.tested", "a tuple of PEP 440 versions or ranges", tested)
    are_rows = isinstance(releases, tuple) and len(releases) <= MAX_ITEMS
    _require(are_rows, "Upstream.releases", f"a tuple of at most {MAX_ITEMS} Release", releases)
    copy = Upstream(name, versions, tested, tuple(map(_check_row, releases)), _check_found(upstream))
    for operation in dict.fromkeys(row.operation for row in copy.releases):
        _check_order([row for row in copy.releases if row.operation == operation])
    for row in copy.releases:
        _check_decision(row, copy)
    return copy


def _check_row(row: object) -> Release:
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
    return Release(row.since, row.says, row.operation, row.refused, row.change)


def _check_found(upstream: Upstream) -> dict[str, str]:
    found = upstream.found
    is_sound = isinstance(found, Mapping) and len(found) <= MAX_ITEMS
    is_sound = is_sound and all(words and is_printable(words) for words in found.values())
    _require(is_sound, "Upstream.found", "words by operation", found)
    about = {row.operation for row in upstream.releases} - {None}
    for operation in found:
        needed = "operations that Upstream.releases has rows about"
        _require(operation in about, "Upstream.found", needed, operation)
    return dict(found)


def _check_order(rows: list[Release]) -> None:
    """Check that the rows about an operation cover each version exactly once."""
    about = f"Upstream.releases about {rows[0].operation or 'all operations'}"
    begins = Version(rows[0].since) == Version("0")
    _require(begins, about, "to begin with the release '0'", rows[0].since)
    if all(row.refused for row in rows):
        raise PluginError(f"{about} needs a row that is used, found none")
    for row, following in itertools.pairwise(rows):
        if Version(following.since) <= Version(row.since):
            raise PluginError(
                f"{about} needs ascending releases, found {following.since!r} behind {row.since!r}"
            )


def _check_decision(row: Release, upstream: Upstream) -> None:
    """Check that neither the range nor a row about all operations refuses the releases of a row in use."""
    if row.refused or Version(row.since) == Version("0"):
        return
    about = f"Upstream.releases about {row.operation or 'all operations'}"
    is_used = is_in_range(upstream, row.since)
    _require(is_used, about, f"used releases within {upstream.versions!r}", row.since)
    above = release_of(upstream, row.since, None)
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
    """Whether a short printable text parses as a kind of text, such as a version."""
    if not is_printable(text, MAX_WORD_CHARS):
        return False
    try:
        kind(str(text))
    except ValueError:  # as of packaging, and of a number with more digits than Python converts
        return False
    return True


def _kind(value: object) -> str:
    return "None" if value is None else printable(type(value).__name__)
