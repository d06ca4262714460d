"""What discovery finds and what resolution decides: frozen facts, ready to print or to compare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tokendraw._exchange.host import Host
from tokendraw._exchange.plugin_info import PluginInfo


class State(StrEnum):
    """How far a plugin got."""

    FOUND = "found"  # its entry point was seen
    LOADED = "loaded"  # it was imported and described itself
    AVAILABLE = "available"  # it can serve this machine and this need
    UNAVAILABLE = "unavailable"  # it cannot, and says why
    BROKEN = "broken"  # importing it, or one of its hooks, raised
    DISABLED = "disabled"  # the user switched it off; it was not imported
    INCOMPATIBLE = "incompatible"  # it speaks another plugin API version


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plugin that is installed, as far as is known.

    ``state`` and ``reason`` are about one operation, host and need. Where ``info`` is there,
    :func:`tokendraw.resolve` derives them anew from the facts below, so that candidates found here can be
    resolved for another machine.
    """

    name: str
    state: State
    reason: str | None = None
    """Why it is not available: needed against found. None for found, loaded and available."""
    distribution: str = ""
    """Name of the distribution that brought the entry point."""
    version: str = ""
    entry_point: str = ""
    """``package.module:attribute``."""
    first_party: bool = False
    info: PluginInfo | None = None
    """What it says of itself; None unless it was loaded."""
    upstream_version: str | None = None
    """Installed version of ``info.upstream``; None if that is not installed or there is no upstream."""
    probe_reason: str | None = None
    """What the plugin's own probe found missing on this machine."""
    rejection: str | None = None
    """Why building it, or its proof draw, failed on this device."""

    @property
    def priority(self) -> int:
        """Its rank before the user's order; 0 if it never described itself."""
        return self.info.priority if self.info else 0

    def capabilities(self, operation: str) -> Any:
        """Look up what it can do in one operation: of its capabilities type; None if it offers no such thing."""
        return self.info.operations.get(operation) if self.info else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the user decided, and where."""

    sampler: str | None = None
    """Name of the one sampler to use; None for the default choice."""
    source: str = ""
    """Who asked: ``the argument sampler=``, ``--sampler``, ``TOKENDRAW_SAMPLER``, or the configuration file's path."""
    priority: tuple[str, ...] = ()
    """Names that go before all others, in this order."""
    disabled: tuple[str, ...] = ()
    """Names that are not even imported."""
    disabled_source: str = "TOKENDRAW_DISABLE"
    """Who switched them off: the variable, or the path of the configuration file."""
    first_party_only: bool = False
    """Whether ``TOKENDRAW_NO_PLUGINS`` leaves only the plugins that tokendraw itself ships."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One candidate, accepted or rejected, with the reason."""

    name: str
    accepted: bool
    state: State
    reason: str
    """A sentence: why it was chosen, kept in reserve, or rejected."""
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """Which sampler serves an operation on a host, and every decision on the way, best first."""

    operation: str
    host: Host
    need: Any
    """Of the operation's need type."""
    choice: Choice
    chosen: str
    companion: str | None
    """Serves the rows that ``chosen`` cannot; None if it can serve all, or if nobody here can."""
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()
    """What the user should hear once: a passed-over plugin, an untested upstream version."""
    fallback: str | None = None
    """The one of ``warnings`` that tells of passed-over plugins."""
    beyond: tuple[str, ...] = ()
    """Kinds of rows that ``chosen`` cannot serve, such as ``greedy rows``."""

    @property
    def untested(self) -> tuple[str, ...]:
        """Those of ``warnings`` that tell of untested upstream versions."""
        return tuple(text for text in self.warnings if text != self.fallback)

    def explain(self) -> str:
        """The decisions as lines of text, the chosen one first."""
        lines = [f"{self.operation} on {self.host}: {self.chosen}"]
        if self.beyond:
            who = f"go to {self.companion}" if self.companion else "are served by no sampler here"
            lines.append(f"  beyond {self.chosen} ({', '.join(self.beyond)}): {who}")
        lines += [f"  {'+' if d.accepted else '-'} {d.name}: {d.reason}" for d in self.decisions]
        return "\n".join(lines)
