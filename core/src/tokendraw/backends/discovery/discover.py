"""Finds the installed plugins, and how far each of them gets on this machine; filters and operations likewise.

Each plugin gets a manager of its own: pluggy checks its hooks against the specification, and no plugin sees another.
What cannot be used affects nothing else. Imports no torch.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import importlib_metadata
import pluggy
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tokendraw.backends.description import (
    API_VERSION,
    MAX_PRIORITY,
    MAX_WORD_CHARS,
    OLDEST_API_VERSION,
    Host,
    HostCapabilities,
    HostNeed,
    Operation,
    PluginInfo,
    Release,
    Upstream,
    are_words,
    rules_of,
)
from tokendraw.backends.discovery import entry_points, guard
from tokendraw.backends.discovery.guard import guarded, package_of
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution.candidate import (
    Candidate,
    Choice,
    Extension,
    State,
    admit,
    disabled_reason,
    reserved_reason,
)
from tokendraw.backends.resolution.decide import assess, disable_setting
from tokendraw.backends.resolution.upstream import is_in_range, release_of, tested_range
from tokendraw.errors import (
    MAX_TEXT_CHARS,
    PluginError,
    all_of,
    format_line,
    format_value,
    is_printable,
    one_of,
    printable,
)

if TYPE_CHECKING:
    import torch


_T = TypeVar("_T")
CapabilitiesType: TypeAlias = Callable[[str], type[HostCapabilities]]

_PROJECT = "tokendraw"
hookspec = pluggy.HookspecMarker(_PROJECT)
hookimpl = pluggy.HookimplMarker(_PROJECT)


class HookSpecs:
    """The hooks of a plugin. They serve negotiation only: no hook is called while tokens are drawn."""

    @hookspec(firstresult=True)
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the plugin: pure data, no imports, no devices, but for the files of the upstream library."""
        raise NotImplementedError  # a specification, never called

    @hookspec(firstresult=True)
    def tokendraw_probe(self, operation: str, host: Host, need: HostNeed) -> str | None:
        """Say in words why this machine cannot serve ``operation``; None if it can. Optional.

        Called if the declared capabilities fit. Look, do not import: a compiler on PATH, a prebuilt module on disk.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def tokendraw_build(self, operation: str, device: torch.device, need: HostNeed) -> Any:
        """Build the sampler for a device. Heavy imports happen now. An exception becomes the reason shown to users."""
        raise NotImplementedError


@dataclass(frozen=True)
class Discovery:
    """The installed plugins, found and loaded for a host and a choice."""

    host: Host
    choice: Choice
    plugins: tuple[Candidate, ...]
    """Sorted by name; as far as they got without regard to an operation."""
    hooks: Mapping[str, pluggy.HookRelay]
    """Hooks of each plugin that loaded, by its name."""

    def candidates(self, operation: Operation, need: HostNeed) -> tuple[Candidate, ...]:
        """Assess and probe every plugin for an operation, with state and reason. A plugin's failure raises nothing."""
        return tuple(self._assess(c, operation, need) for c in self.plugins)

    def offered(self, name: str, operation: Operation) -> Any:
        info = next(c.info for c in self.plugins if c.name == name and c.info is not None)
        return info.operations[operation.name]

    def _assess(self, candidate: Candidate, operation: Operation, need: HostNeed) -> Candidate:
        """Assess a plugin, and call its probe unless its declared capabilities already rule out this machine."""
        if candidate.state is not State.LOADED:
            return candidate
        explicit, relay = candidate.name == self.choice.sampler, self.hooks[candidate.name]
        candidate = assess(candidate, operation, self.host, need, explicit=explicit)
        if candidate.state is not State.AVAILABLE:
            return candidate
        try:
            arguments: Any = {"operation": operation.name, "host": self.host, "need": need}
            reason = guarded("tokendraw_probe", lambda: relay.tokendraw_probe(**arguments))
        except PluginError as error:
            return replace(candidate, state=State.BROKEN, reason=str(error))
        if reason is None:
            return candidate
        words = format_line(reason) if isinstance(reason, str) else ""
        if not words:
            answer = f"tokendraw_probe needs to return a sentence or None, found {format_value(reason)}"
            return replace(candidate, state=State.BROKEN, reason=answer)
        return replace(candidate, state=State.UNAVAILABLE, reason=words, probe_reason=words)


def gather(host: Host, choice: Choice, type_of: CapabilitiesType) -> Discovery:
    """Find and load every installed plugin. Raises nothing on their account."""
    plugins: list[Candidate] = []
    hooks: dict[str, pluggy.HookRelay] = {}
    for candidate in admit(entry_points.find_entry_points(), choice):
        if candidate.state is not State.FOUND:
            plugins.append(candidate)
            continue
        with _watched(candidate, choice, is_ours=candidate.first_party):
            try:
                relay = _hooks(candidate)
                loaded = _described(candidate, relay, type_of)
            except PluginError as error:
                loaded = replace(candidate, state=State.BROKEN, reason=str(error))
        plugins.append(loaded)
        if loaded.state is State.LOADED:
            hooks[loaded.name] = relay
    return Discovery(host, choice, tuple(plugins), hooks)


def _described(candidate: Candidate, relay: pluggy.HookRelay, type_of: CapabilitiesType) -> Candidate:
    answer = guarded("tokendraw_describe", relay.tokendraw_describe)
    info = guarded("reading PluginInfo", lambda: check_identity(answer, candidate.name))
    if not OLDEST_API_VERSION <= info.api_version <= API_VERSION:
        # The rest of what it says may mean something else in its own API.
        version, priority = info.api_version, info.priority
        identity = PluginInfo(name=info.name, api_version=version, priority=priority, operations={})
        outdated = "tokendraw" if version > API_VERSION else candidate.distribution
        reason = f"needs plugin API {version}, found {API_VERSION}; upgrade {outdated}"
        return replace(candidate, state=State.INCOMPATIBLE, info=identity, reason=reason)
    info = guarded("reading PluginInfo", lambda: check_description(info, type_of))
    installed = entry_points.installed_version(info.upstream.distribution) if info.upstream else None
    return replace(candidate, state=State.LOADED, info=info, upstream_version=installed)


def _hooks(candidate: Candidate) -> pluggy.HookRelay:
    """Import the plugin object and let pluggy check its hooks against the specification."""
    value = candidate.entry_point
    plugin = _imported(entry_points.PLUGIN_GROUP, candidate)
    if inspect.isclass(plugin):
        name = printable(plugin.__name__)
        raise PluginError(f"{value!r} needs to be a plugin object, found the class {name}; add ()")
    manager = pluggy.PluginManager(_PROJECT)
    manager.add_hookspecs(HookSpecs)
    guarded(f"registering {value!r}", lambda: manager.register(plugin, candidate.name))
    guarded(f"registering {value!r}", manager.check_pending)
    for hook in ("tokendraw_describe", "tokendraw_build"):
        if not getattr(manager.hook, hook).get_hookimpls():
            raise PluginError(
                f"{value!r} needs the hook {hook}, found none; define it with @tokendraw.plugin.hookimpl"
            )
    return manager.hook


def _imported(group: str, record: Extension, package: str = "") -> Any:
    entry_point = importlib_metadata.EntryPoint(record.name, record.entry_point, group)
    return guarded(f"loading {record.entry_point!r}", entry_point.load, package)


def _watched(
    record: Extension, choice: Choice, *, is_ours: bool
) -> contextlib.AbstractContextManager[object]:
    if is_ours:
        return contextlib.nullcontext()
    return guard.watched(record.name, f"Set {disable_setting([record.name], choice)} to do without it.")


# Filters and operations.

_NAME = re.compile(r"[a-z][a-z0-9_]{,63}")
_NAME_RULE = "at most 64 lowercase letters, digits and underscores, a letter first"
_VARIABLES = ("TOKENDRAW_CONFIG", "TOKENDRAW_DISABLE", "TOKENDRAW_NO_PLUGINS")


def sources() -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Return what decides which extensions there are: settings, and where distributions lie."""
    return tuple(os.environ.get(variable) for variable in _VARIABLES), tuple(sys.path)


def find_extensions(
    group: str, checked: Callable[[Any, str, str], _T], owners: Mapping[str, str]
) -> list[tuple[Extension, _T | None]]:
    """Find and load what a group declares, sorted by name; None in place of what cannot be used.

    :param checked: makes the value of the imported object, the name and the entry point; raises a PluginError.
    :param owners: the one distribution that may claim a name.
    """
    choice = read_settings().choice()
    declared = entry_points.declarations(group, _NAME.fullmatch, _NAME_RULE)
    records = [_admitted(record, choice, owners) for record in declared]
    loaded: list[tuple[Extension, _T | None]] = []
    for record in sorted(records, key=lambda record: (record.name, record.distribution)):
        rivals = [r.distribution for r in records if r.name == record.name and r.state is State.FOUND]
        if record.state is not State.FOUND:
            loaded.append((record, None))
        elif len(rivals) > 1:
            reason = f"the name {record.name!r} is claimed by {all_of(sorted(rivals))}; uninstall all but one"
            loaded.append((replace(record, state=State.BROKEN, reason=reason), None))
        else:
            with _watched(record, choice, is_ours=record.name in owners):
                loaded.append(_load(group, record, checked))
    return loaded


def _admitted(record: Extension, choice: Choice, owners: Mapping[str, str]) -> Extension:
    """Decide from names alone whether an object may be imported."""
    owner = owners.get(record.name)
    is_ours = owner is not None and canonicalize_name(record.distribution) == owner
    if owner is not None and not is_ours:
        broken = reserved_reason(record.name, owner, record.distribution)
        return replace(record, state=State.BROKEN, reason=broken)
    if reason := disabled_reason(record.name, choice, first_party=is_ours):
        return replace(record, state=State.DISABLED, reason=reason)
    return record


def _load(group: str, record: Extension, check: Callable[[Any, str, str], _T]) -> tuple[Extension, _T | None]:
    name, value = record.name, record.entry_point
    try:
        loaded = _imported(group, record, value.partition(".")[0].partition(":")[0])
        extension = guarded(f"making {value!r}", lambda: check(loaded, name, value), package_of(loaded))
    except PluginError as error:
        return replace(record, state=State.BROKEN, reason=str(error)), None
    return replace(record, state=State.AVAILABLE), extension


# The check of a plugin's description against the plugin API, before its first use.


def _require(fits: bool, subject: str, needed: str, value: object) -> None:
    if not fits:
        raise PluginError(f"{subject} needs {needed}, found {format_value(value)}")


def check_identity(info: object, name: str) -> PluginInfo:
    if not isinstance(info, PluginInfo):
        found = _type_name(info)
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
        found = _type_name(upstream)
        raise PluginError(f"PluginInfo.upstream needs a tokendraw.plugin.Upstream or None, found {found}")
    return replace(info, operations=copies)


def _capabilities(name: str, offered: object, type_of: CapabilitiesType) -> HostCapabilities:
    """Copy the capabilities of an operation; of an operation unknown to this core, the host's part alone."""
    if not is_printable(name, MAX_WORD_CHARS) or not isinstance(offered, HostCapabilities):
        found = _type_name(offered) if is_printable(name, MAX_WORD_CHARS) else format_value(name)
        raise PluginError(f"PluginInfo.operations needs Capabilities by name, found {found}")
    declared = type_of(name)
    if not isinstance(offered, declared):
        needed, found = declared.__name__, _type_name(offered)
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


def _parses(parse: Callable[[str], object], text: object) -> bool:
    if not is_printable(text, MAX_WORD_CHARS):
        return False
    try:
        parse(str(text))
    except ValueError:  # as of packaging, and of a number with more digits than Python converts
        return False
    return True


def _type_name(value: object) -> str:
    return "None" if value is None else printable(type(value).__name__)
