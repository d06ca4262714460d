"""The findings of discovery and the decisions of resolution, as frozen records to print or to compare.

At the end, from names alone: which of the found plugins may be imported, before any of their code runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from packaging.utils import canonicalize_name

from tokendraw.backends.description import Host, PluginInfo, is_name
from tokendraw.errors import all_of


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
class Extension:
    """What an entry point of one of tokendraw's groups declares.

    :ivar name: Name of the entry point, fit to print.
    :ivar state: State, such as ``available`` or ``broken``.
    :ivar reason: Reason why it cannot be used: needed against found. None in the states found, loaded and available.
    :ivar distribution: Name of the distribution that brought the entry point.
    :ivar version: Version of that distribution; "" if unknown.
    :ivar entry_point: ``package.module:attribute``.
    """

    name: str
    state: State
    reason: str | None = None
    distribution: str = ""
    version: str = ""
    entry_point: str = ""


@dataclass(frozen=True, kw_only=True)
class Candidate(Extension):
    """A plugin that is installed, as far as it is known.

    ``state`` and ``reason`` are about one operation, host and need. Where ``info`` is there,
    :func:`tokendraw.resolve` derives them anew from the fields below, so that candidates found here can be
    resolved for another machine. Inherits the fields of :class:`Extension`.

    :ivar first_party: Whether tokendraw itself ships the plugin, by the name of its distribution.
    :ivar info: The plugin's description of itself; None unless the plugin was loaded.
    :ivar upstream_version: Installed version of ``info.upstream``; None if not installed, or without an upstream.
    :ivar probe_reason: Finding of the plugin's probe: what this machine lacks; None if nothing.
    :ivar rejection: Reason why building the plugin, or the proof draw, failed on this device.
    """

    first_party: bool = False
    info: PluginInfo | None = None
    upstream_version: str | None = None
    probe_reason: str | None = None
    rejection: str | None = None

    @property
    def priority(self) -> int:
        """Rank of the plugin before the user's order; 0 without a description."""
        return self.info.priority if self.info else 0

    def capabilities(self, operation: str) -> Any:
        """Look up the plugin's capabilities in an operation; None if the plugin does not offer the operation."""
        return self.info.operations.get(operation) if self.info else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The user's decisions, each with its source: an argument, an option, a variable, or the configuration file's path.

    :ivar sampler: Name of the one sampler to use; None for the default choice.
    :ivar source: Source of ``sampler``: ``the argument sampler=``, ``--sampler``, ``TOKENDRAW_SAMPLER`` ...
    :ivar priority: Names that go before all others, in this order.
    :ivar priority_source: Source of ``priority``: the variable, or the path of the configuration file.
    :ivar disabled: Names that are not even imported.
    :ivar disabled_source: Source of ``disabled``: the variable, or the path of the configuration file.
    :ivar first_party_only: Whether ``TOKENDRAW_NO_PLUGINS`` leaves only the plugins that tokendraw itself ships.
    :ivar names: Names of the plugin and the companions of each operation, as another rank chose them
        (:attr:`Resolution.names`); None: the companions, and the plugin if ``sampler`` is None, are tokendraw's choice.
    """

    sampler: str | None = None
    source: str = ""
    priority: tuple[str, ...] = ()
    priority_source: str = "TOKENDRAW_PRIORITY"
    disabled: tuple[str, ...] = ()
    disabled_source: str = "TOKENDRAW_DISABLE"
    first_party_only: bool = False
    names: Mapping[str, Sequence[str]] | None = None

    def place(self, name: str) -> int:
        """Return the index of a plugin in the user's order; plugins without a place in the order come last."""
        return self.priority.index(name) if name in self.priority else len(self.priority)

    def rank(self, candidate: Candidate) -> tuple[int, int, str, str, str]:
        """Order by the user's list, then by higher priority, then by name; the rest makes the order stable."""
        return (
            self.place(candidate.name),
            -candidate.priority,
            candidate.name,
            candidate.distribution,
            candidate.entry_point,
        )


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on a candidate: accepted or rejected, with the reason.

    :ivar name: Name of the candidate.
    :ivar accepted: Whether the candidate can serve.
    :ivar state: State of the candidate.
    :ivar reason: Sentence that says why the candidate was chosen, kept in reserve, or rejected.
    :ivar priority: Priority that the plugin declares.
    """

    name: str
    accepted: bool
    state: State
    reason: str
    priority: int = 0

    @classmethod
    def of(cls, candidate: Candidate, reason: str) -> Self:
        """Decide by the state of a candidate."""
        return cls(
            name=candidate.name,
            accepted=candidate.state is State.AVAILABLE,
            state=candidate.state,
            reason=reason,
            priority=candidate.priority,
        )


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The plugin chosen to serve an operation on a host, with every decision on the way, best first.

    :ivar operation: Name of the operation.
    :ivar host: Device and software that the decision is for.
    :ivar need: Need of the caller, of the operation's need type.
    :ivar choice: Choice of the user that the decision honours.
    :ivar chosen: Name of the chosen plugin.
    :ivar companion: Name of the plugin that serves the rows or calls that ``chosen`` cannot; None without one.
    :ivar decisions: Decision on each candidate, the best first.
    :ivar warnings: Warnings to give once: a plugin was passed over, an upstream version is untested.
    :ivar fallback: The entry of ``warnings`` about plugins that were passed over.
    :ivar beyond: Kinds of rows or calls that ``chosen`` cannot serve, such as ``greedy rows``.
    :ivar partial_companion: Name of a plugin that ranks before ``chosen``, which the user named, and that serves these
        rows or calls in place of ``companion`` where it can serve all of them in a call; None if there is none.
    """

    operation: str
    host: Host
    need: Any
    choice: Choice
    chosen: str
    companion: str | None
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()
    fallback: str | None = None
    beyond: tuple[str, ...] = ()
    partial_companion: str | None = None

    @property
    def companions(self) -> tuple[str, ...]:
        """Names of the companions, the one that is tried first in front."""
        return tuple(name for name in (self.partial_companion, self.companion) if name is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the chosen plugin and of its companions, for :attr:`Choice.names`."""
        return (self.chosen, *self.companions)

    @property
    def untested(self) -> tuple[str, ...]:
        """The entries of ``warnings`` about untested upstream versions."""
        return tuple(text for text in self.warnings if text != self.fallback)

    def explain(self) -> str:
        """The decisions as lines of text, the chosen one first."""
        lines = [f"{self.operation} on {self.host}: {self.chosen}"]
        if self.beyond:
            names = ", or else to ".join(self.companions)
            who = f"go to {names}" if names else "are served by no plugin here"
            lines.append(f"  beyond {self.chosen} ({', '.join(self.beyond)}): {who}")
        lines += [f"  {'+' if d.accepted else '-'} {d.name}: {d.reason}" for d in self.decisions]
        return "\n".join(lines)


FIRST_PARTY: Mapping[str, str] = {
    "native": "tokendraw-native",
    "cpu": "tokendraw-cpu",
    "flashinfer": "tokendraw-flashinfer",
    "aiter": "tokendraw-aiter",
    "triton-gumbel": "tokendraw-triton-gumbel",
    "ops-torch": "tokendraw-engine-ops",
    "ops-triton": "tokendraw-engine-ops",
    "ops-flashinfer": "tokendraw-engine-ops",
}
"""Reserved names, each with the one distribution that may claim it."""

FIRST_PARTY_OPERATIONS: Mapping[str, str] = {
    "plan_paged_kv": "tokendraw-engine-ops",
    "pack_sm90_w4": "tokendraw-engine-ops",
}
"""Reserved names of operations outside the core, each with the distribution that brings it."""


def is_first_party(name: str, distribution: str) -> bool:
    return FIRST_PARTY.get(name) == canonicalize_name(distribution)


def admit(candidates: Iterable[Candidate], choice: Choice) -> tuple[Candidate, ...]:
    """Mark candidates that may not run as disabled or broken."""
    marked = [_marked(candidate, choice) for candidate in candidates]
    owners = {name: claimants(rivals) for name, rivals in conflicts(marked).items()}
    return tuple(
        replace(c, state=State.BROKEN, reason=disputed_reason(c.name, owners[c.name]))
        if c.name in owners and _claims(c)
        else c
        for c in marked
    )


def _marked(candidate: Candidate, choice: Choice) -> Candidate:
    if reason := disabled_reason(candidate.name, choice, first_party=candidate.first_party):
        return replace(candidate, state=State.DISABLED, reason=reason)
    if _squats(candidate):
        reason = reserved_reason(candidate.name, FIRST_PARTY[candidate.name], *claimants([candidate]))
        return replace(candidate, state=State.BROKEN, reason=reason)
    return candidate


def conflicts(candidates: Iterable[Candidate]) -> dict[str, tuple[Candidate, ...]]:
    """Find names claimed by two different distributions, each with its claimants.

    Disabled candidates, remains without a distribution's metadata and names that no caller can choose claim nothing. A
    reserved name belongs to its first-party distribution, whoever else asks.
    """
    claims: defaultdict[str, dict[str, Candidate]] = defaultdict(dict)
    for candidate in sorted(candidates, key=lambda c: (c.distribution, c.version)):
        if _claims(candidate):
            claims[candidate.name].setdefault(canonicalize_name(candidate.distribution), candidate)
    return {name: tuple(owners.values()) for name, owners in sorted(claims.items()) if len(owners) > 1}


def claimants(candidates: Iterable[Candidate]) -> list[str]:
    return [f"{c.distribution} {c.version}".rstrip() for c in candidates]


def disabled_reason(name: str, choice: Choice, *, first_party: bool) -> str | None:
    if name in choice.disabled:
        return f"switched off by {choice.disabled_source}"
    if choice.first_party_only and not first_party:
        return "not first-party, and TOKENDRAW_NO_PLUGINS=1 admits no others"
    return None


def reserved_reason(name: str, owner: str, claimant: str) -> str:
    return f"the name {name!r} is reserved for the distribution {owner}, found it in {claimant}; rename the entry point"


def disputed_reason(name: str, owners: Sequence[str]) -> str:
    surplus = "one" if len(owners) == 2 else "all but one"
    return f"the name {name!r} is claimed by {all_of(owners)}; uninstall {surplus} of them"


def _claims(candidate: Candidate) -> bool:
    is_found = bool(candidate.distribution) and candidate.state is not State.DISABLED
    return is_found and is_name(candidate.name) and not _squats(candidate)


def _squats(candidate: Candidate) -> bool:
    """Whether another distribution claims a reserved name. A candidate made by hand has no distribution."""
    is_reserved = candidate.name in FIRST_PARTY and bool(candidate.distribution)
    return is_reserved and not is_first_party(candidate.name, candidate.distribution)
