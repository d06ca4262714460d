"""The findings of discovery and the decisions of resolution, as frozen facts to print or to compare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tokendraw._exchange.host import Host
from tokendraw._exchange.plugin_info import PluginInfo


class State(StrEnum):
    """The state of a plugin: how far it got."""

    FOUND = "found"  # its entry point was seen
    LOADED = "loaded"  # it was imported and described itself
    AVAILABLE = "available"  # it can serve this machine and this need
    UNAVAILABLE = "unavailable"  # it cannot, and says why
    BROKEN = "broken"  # importing it, or one of its hooks, raised
    DISABLED = "disabled"  # the user switched it off; it was not imported
    INCOMPATIBLE = "incompatible"  # it speaks another plugin API version


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plugin that is installed, as far as it is known.

    ``state`` and ``reason`` are about one operation, host and need. Where ``info`` is there,
    :func:`tokendraw.resolve` derives them anew from the facts below, so that candidates found here can be
    resolved for another machine.
    """

    name: str
    state: State
    reason: str | None = None
    """Says why it is not available: needed against found. None for found, loaded and available."""
    distribution: str = ""
    """Name of the distribution that brought the entry point."""
    version: str = ""
    entry_point: str = ""
    """``package.module:attribute``."""
    first_party: bool = False
    info: PluginInfo | None = None
    """Its own description; None unless it was loaded."""
    upstream_version: str | None = None
    """Installed version of ``info.upstream``; None if that is not installed or there is no upstream."""
    probe_reason: str | None = None
    """Says what the plugin's own probe found missing on this machine."""
    rejection: str | None = None
    """Says why building it, or its proof draw, failed on this device."""

    @property
    def priority(self) -> int:
        """Its rank before the user's order; 0 if it never described itself."""
        return self.info.priority if self.info else 0

    def capabilities(self, operation: str) -> Any:
        """Look up its capabilities in one operation; None if it does not offer that."""
        return self.info.operations.get(operation) if self.info else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The user's decisions, each with its source."""

    sampler: str | None = None
    """Name of the one sampler to use; None for the default choice."""
    source: str = ""
    """Source of ``sampler``: ``the argument sampler=``, ``--sampler``, ``TOKENDRAW_SAMPLER``, or a file's path."""
    priority: tuple[str, ...] = ()
    """Names that go before all others, in this order."""
    priority_source: str = "TOKENDRAW_PRIORITY"
    """Source of ``priority``: the variable, or the path of the configuration file."""
    disabled: tuple[str, ...] = ()
    """Names that are not even imported."""
    disabled_source: str = "TOKENDRAW_DISABLE"
    """Source of ``disabled``: the variable, or the path of the configuration file."""
    first_party_only: bool = False
    """Whether ``TOKENDRAW_NO_PLUGINS`` leaves only the plugins that tokendraw itself ships."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on a candidate: accepted or rejected, with the reason."""

    name: str
    accepted: bool
    state: State
    reason: str
    """A sentence: why it was chosen, kept in reserve, or rejected."""
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The plugin chosen to serve an operation on a host, with every decision on the way, best first."""

    operation: str
    host: Host
    need: Any
    """The need, of the operation's need type."""
    choice: Choice
    chosen: str
    companion: str | None
    """Serves the rows or calls that ``chosen`` cannot; None if it can serve all, or if nobody here can."""
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()
    """Warnings to give once: a plugin was passed over, an upstream version is untested."""
    fallback: str | None = None
    """The entry of ``warnings`` about plugins that were passed over."""
    beyond: tuple[str, ...] = ()
    """Kinds of rows or calls that ``chosen`` cannot serve, such as ``greedy rows``."""

    @property
    def untested(self) -> tuple[str, ...]:
        """The entries of ``warnings`` about untested upstream versions."""
        return tuple(text for text in self.warnings if text != self.fallback)

    def explain(self) -> str:
        """The decisions as lines of text, the chosen one first."""
        lines = [f"{self.operation} on {self.host}: {self.chosen}"]
        if self.beyond:
            who = f"go to {self.companion}" if self.companion else "are served by no plugin here"
            lines.append(f"  beyond {self.chosen} ({', '.join(self.beyond)}): {who}")
        lines += [f"  {'+' if d.accepted else '-'} {d.name}: {d.reason}" for d in self.decisions]
        return "\n".join(lines)
