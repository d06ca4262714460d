"""Finds the installed plugins, and how far each of them gets on this machine.

Each plugin gets a manager of its own: pluggy checks its hooks against the specification, and no plugin sees another.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import importlib_metadata
import pluggy

from tokendraw.backends.description.capabilities import HostNeed
from tokendraw.backends.description.host import Host
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.description.plugin_info import API_VERSION, OLDEST_API_VERSION, PluginInfo
from tokendraw.backends.discovery import guard
from tokendraw.backends.discovery.entry_points import find_entry_points, installed_version
from tokendraw.backends.discovery.guard import guarded
from tokendraw.backends.discovery.hooks import ENTRY_POINT_GROUP, PROJECT, HookSpecs
from tokendraw.backends.discovery.validation import CapabilitiesType, check_description, check_identity
from tokendraw.backends.resolution.admission import admit, author_of
from tokendraw.backends.resolution.advice import disable_setting
from tokendraw.backends.resolution.candidate import Candidate, Choice, State
from tokendraw.backends.resolution.decide import assess
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import MAX_REASON_CHARS, format_line, format_message, format_value, printable
from tokendraw.errors.notices import is_first

_log = logging.getLogger("tokendraw")

_SLOW_PROBE_SECONDS = 1.0  # a probe looks at files and finds programs, it compiles and imports nothing
_REQUIRED_HOOKS = ("tokendraw_describe", "tokendraw_build")


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
        """Assess and probe every plugin for an operation, with state and reason. A plugin's failure raises nothing.

        :param need: of the operation's need type.
        """
        return tuple(self._assess(c, operation, need) for c in self.plugins)

    def offered(self, name: str, operation: Operation) -> Any:
        """Look up the capabilities of a loaded plugin in an operation.

        :raises KeyError: there is none of that name, or it does not offer the operation.
        """
        info = next(c.info for c in self.plugins if c.name == name and c.info is not None)
        return info.operations[operation.name]

    def _assess(self, candidate: Candidate, operation: Operation, need: HostNeed) -> Candidate:
        """Assess a plugin, and call its probe unless its declared capabilities already rule out this machine.

        The probe is waited for, however long it takes.
        """
        if candidate.state is not State.LOADED:
            return candidate
        explicit, relay = candidate.name == self.choice.sampler, self.hooks[candidate.name]
        candidate = assess(candidate, operation, self.host, need, explicit=explicit)
        if candidate.state is not State.AVAILABLE:
            return candidate
        start = time.monotonic()
        try:
            reason = guarded(
                "tokendraw_probe",
                lambda: relay.tokendraw_probe(operation=operation.name, host=self.host, need=need),
            )
        except PluginError as error:
            return _broken(candidate, error)
        finally:
            _warn_if_slow(candidate.name, time.monotonic() - start)
        if reason is None:
            return candidate
        words = format_line(reason) if isinstance(reason, str) else ""
        if not words:
            answer = f"tokendraw_probe needs to return a sentence or None, found {format_value(reason)}"
            return replace(candidate, state=State.BROKEN, reason=answer)
        return replace(candidate, state=State.UNAVAILABLE, reason=words, probe_reason=words)


def gather(host: Host, choice: Choice, type_of: CapabilitiesType) -> Discovery:
    """Find and load every installed plugin. Raises nothing on their account.

    :param type_of: looks up the types of capabilities that plugins may offer.
    """
    plugins: list[Candidate] = []
    hooks: dict[str, pluggy.HookRelay] = {}
    for candidate in admit(find_entry_points(), choice):
        loaded, relay = candidate, None
        if candidate.state is State.FOUND:
            advice = f"Set {disable_setting([candidate.name], choice)} to do without it."
            with contextlib.nullcontext() if candidate.first_party else guard.watched(candidate.name, advice):
                loaded, relay = _load(candidate, type_of)
        if relay is not None:
            hooks[loaded.name] = relay
        plugins.append(loaded)
    return Discovery(host, choice, tuple(plugins), MappingProxyType(hooks))


def _load(candidate: Candidate, type_of: CapabilitiesType) -> tuple[Candidate, pluggy.HookRelay | None]:
    """Import a plugin and read its description; return hooks only for a sound description of our API version."""
    try:
        relay = _hooks(candidate)
        answer = guarded("tokendraw_describe", relay.tokendraw_describe)
        info = guarded("reading PluginInfo", lambda: check_identity(answer, candidate.name))
        if not OLDEST_API_VERSION <= info.api_version <= API_VERSION:
            # The rest of what it says may mean something else in its own API.
            version, priority = info.api_version, info.priority
            identity = PluginInfo(name=info.name, api_version=version, priority=priority, operations={})
            outdated = "tokendraw" if version > API_VERSION else candidate.distribution
            reason = f"needs plugin API {version}, found {API_VERSION}; upgrade {outdated}"
            return replace(candidate, state=State.INCOMPATIBLE, info=identity, reason=reason), None
        info = guarded("reading PluginInfo", lambda: check_description(info, type_of))
    except PluginError as error:
        return _broken(candidate, error), None
    installed = installed_version(info.upstream.distribution) if info.upstream else None
    return replace(candidate, state=State.LOADED, info=info, upstream_version=installed), relay


def _hooks(candidate: Candidate) -> pluggy.HookRelay:
    """Import the plugin object and let pluggy check its hooks against the specification."""
    value = candidate.entry_point
    entry_point = importlib_metadata.EntryPoint(candidate.name, value, ENTRY_POINT_GROUP)
    plugin = guarded(f"loading {value!r}", entry_point.load)
    if inspect.isclass(plugin):
        kind = printable(plugin.__name__)
        raise PluginError(f"{value!r} needs to be a plugin object, found the class {kind}; add ()")
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)

    def register() -> None:
        manager.register(plugin, candidate.name)
        manager.check_pending()

    guarded(f"registering {value!r}", register)
    for hook in _REQUIRED_HOOKS:
        if not getattr(manager.hook, hook).get_hookimpls():
            raise PluginError(
                f"{value!r} needs the hook {hook}, found none; define it with @tokendraw.plugin.hookimpl"
            )
    return manager.hook


def _broken(candidate: Candidate, error: PluginError) -> Candidate:
    # The error may be one that the plugin itself has raised, in words of its own.
    return replace(candidate, state=State.BROKEN, reason=format_message(error, MAX_REASON_CHARS))


def _warn_if_slow(name: str, seconds: float) -> None:
    if seconds > _SLOW_PROBE_SECONDS and is_first(("slow probe", name)):
        text = "tokendraw_probe of %r took %.1f s, needs less than %g s. Report it to %s."
        _log.warning(text, name, seconds, _SLOW_PROBE_SECONDS, author_of(name))
