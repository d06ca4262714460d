"""Describes negotiations as JSON and in words. Keys are only ever added, because scripts read them.

In JSON, tuples become lists, versions of hardware become ``"9.0"``, and what is unknown or does not apply is
null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tokendraw.backends.description.capabilities import Host, HostCapabilities
from tokendraw.backends.description.plugin_info import PluginInfo
from tokendraw.backends.discovery.settings import Settings
from tokendraw.backends.resolution.candidate import Candidate, Decision, Resolution, State
from tokendraw.errors.formatting import all_of, dotted

if TYPE_CHECKING:
    from tokendraw.providers.sampler import Sampler

JsonObject = dict[str, Any]


def described(candidate: Candidate) -> PluginInfo | None:
    """Return the description of a plugin; None for a plugin of another version of the plugin API."""
    return None if candidate.state is State.INCOMPATIBLE else candidate.info


def rank(candidate: Candidate) -> tuple[bool, int, str]:
    """Sort key: available candidates first, then by priority and name."""
    return candidate.state is not State.AVAILABLE, -candidate.priority, candidate.name


CANDIDATE_HEADER = ("name", "state", "priority", "version", "what it does, or why it cannot")


def candidate_rows(candidates: Iterable[JsonObject]) -> list[tuple[str, ...]]:
    """Write a row of a table for each candidate as of :func:`candidate_json`, with every reason in full."""
    return [
        (
            c["name"],
            c["state"],
            "" if c["api_version"] is None else str(c["priority"]),
            c["version"],
            c["reason"] or c["summary"] or "",
        )
        for c in candidates
    ]


def candidate_json(candidate: Candidate) -> JsonObject:
    """Describe a plugin.

    Keys: ``name``, ``state``, ``reason``, ``priority``, ``summary``, ``distribution``, ``version``,
    ``entry_point``, ``first_party``, ``verified``, ``kernels``, ``api_version``, ``upstream`` (``distribution``,
    ``required``, ``installed``, ``tested``, ``releases``, ``found``) and ``operations`` (capabilities by name).
    """
    info = described(candidate)
    upstream = info.upstream if info else None
    return {
        "name": candidate.name,
        "state": str(candidate.state),
        "reason": candidate.reason,
        "priority": candidate.priority,
        "summary": info.summary if info else None,
        "distribution": candidate.distribution,
        "version": candidate.version,
        "entry_point": candidate.entry_point,
        "first_party": candidate.first_party,
        "verified": info.verified if info else None,
        "kernels": info.kernels if info else None,
        "api_version": candidate.info.api_version if candidate.info else None,
        "upstream": upstream
        and {
            "distribution": upstream.distribution,
            "required": upstream.versions,
            "installed": candidate.upstream_version,
            "tested": upstream.tested,
            "releases": [asdict(row) for row in upstream.releases],
            "found": upstream.found,
        },
        "operations": {op: capabilities_json(c) for op, c in info.operations.items()} if info else None,
    }


def capabilities_json(capabilities: HostCapabilities) -> JsonObject:
    """Return every field of an operation's capabilities; ``filters`` maps a filter to its granularity."""
    fields = asdict(capabilities)
    if "filters" in fields:
        fields["filters"] = dict(fields["filters"])
    if capabilities.compute_capability:
        fields["compute_capability"] = [v and dotted(v) for v in capabilities.compute_capability]
    return fields


def host_json(host: Host) -> JsonObject:
    """Return every field of :class:`tokendraw.plugin.Host`."""
    fields = asdict(host)
    for name in ("compute_capability", "cuda_version"):
        fields[name] = fields[name] and dotted(fields[name])
    return fields


def decisions_json(decisions: Iterable[Decision]) -> list[JsonObject]:
    """Return ``name``, ``accepted``, ``state``, ``reason`` and ``priority`` of each decision."""
    return [{**asdict(decision), "state": str(decision.state)} for decision in decisions]


def resolution_json(resolution: Resolution) -> JsonObject:
    """Describe a resolution.

    Keys: ``operation``, ``chosen``, ``companion``, ``partial_companion``, ``companion_serves`` (kinds of rows or
    calls), ``host``, ``need``, ``choice``, ``decisions`` (best first) and ``warnings``.
    """
    return {
        "operation": resolution.operation,
        "chosen": resolution.chosen,
        "companion": resolution.companion,
        "partial_companion": resolution.partial_companion,
        "companion_serves": resolution.beyond,
        "host": host_json(resolution.host),
        "need": asdict(resolution.need),
        "choice": asdict(resolution.choice),
        "decisions": decisions_json(resolution.decisions),
        "warnings": resolution.warnings,
    }


def sampler_json(sampler: Sampler) -> JsonObject:
    """Return the keys ``sampler`` (its name), ``device`` and ``resolution``."""
    resolution = resolution_json(sampler.resolution)
    return {"sampler": sampler.name, "device": str(sampler.device), "resolution": resolution}


def drawn_by(sampler: Sampler) -> str:
    """Write the line ``drawn by NAMES on DEVICE: REASON`` from the rows that each sampler has drawn so far."""
    resolution, rows = sampler.resolution, sampler.stats()
    chosen, companions = resolution.chosen, resolution.companions
    reason = next(decision.reason for decision in resolution.decisions if decision.name == chosen)
    if list(rows) in [[name] for name in companions]:
        return f"drawn by {all_of(rows)} on {sampler.device}: it draws what {chosen} cannot ({reason})"
    names = chosen
    if len(rows) > 1:
        total = sum(rows.values())
        chosen_first = sorted(rows, key=lambda name: name != chosen)
        names = all_of(f"{name} ({rows[name]} of {total} rows)" for name in chosen_first)
    line = f"drawn by {names} on {sampler.device}: {reason}"
    return f"{line}; {' or '.join(companions)} draws what {chosen} cannot" if companions else line


def settings_in_force(settings: Settings) -> dict[str, str]:
    """Map the settings from outside the program, a variable or ``KEY in FILE``, to their values."""

    def label(key: str, source: str) -> str:
        return source if source.startswith("TOKENDRAW_") else f"{key} in {source}"

    values = {
        "TOKENDRAW_NO_PLUGINS": "1" if settings.first_party_only else "",
        "TOKENDRAW_STRICT": "1" if settings.strict else "",
        "TOKENDRAW_DEBUG": "1" if settings.debug else "",
        label("sampler", settings.sampler_source): settings.sampler or "",
        label("priority", settings.priority_source): ", ".join(settings.priority),
        label("disable", settings.disabled_source): ", ".join(settings.disabled),
    }
    return {name: value for name, value in values.items() if value}
