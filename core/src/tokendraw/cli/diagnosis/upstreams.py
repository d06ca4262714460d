"""Compares versions of upstream libraries: installed, required, and the effect of another version.

The other version is the newest that was tested, or without one the newest that the plugin knows of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from tokendraw import operations
from tokendraw.backends.description.host import Host
from tokendraw.backends.description.plugin_info import Upstream
from tokendraw.backends.resolution import upstream as _upstream
from tokendraw.backends.resolution.candidate import Candidate, Choice, State
from tokendraw.backends.resolution.decide import assess
from tokendraw.cli.describe import described
from tokendraw.errors.exceptions import TokendrawError
from tokendraw.errors.formatting import all_of
from tokendraw.providers.resolve import decide

Assessed = Mapping[str, Sequence[Candidate]]
"""All candidates by operation, as :func:`tokendraw.providers.resolve.discover_all` finds them."""


@dataclass(frozen=True)
class UpstreamState:
    """A library and the plugin that calls the library."""

    name: str
    plugin: str
    installed: str | None
    """Installed version; None if it is not installed."""
    needed: str
    """PEP 440 specifier."""
    tested: tuple[str, ...]
    would_change: str
    """Phrases about the effect of the newest tested, or known, version on this machine."""


def upstreams(
    plugins: Iterable[Candidate], assessed: Assessed, host: Host, choice: Choice
) -> list[UpstreamState]:
    """Look at the upstream of each of the plugins."""
    states = []
    for plugin in plugins:
        info = described(plugin)
        if info is not None and info.upstream is not None:
            by_operation = {
                name: next(
                    c for c in candidates if (c.name, c.distribution) == (plugin.name, plugin.distribution)
                )
                for name, candidates in assessed.items()
                if name in info.operations
            }
            states.append(
                UpstreamState(
                    info.upstream.distribution,
                    plugin.name,
                    plugin.upstream_version,
                    info.upstream.versions,
                    tuple(info.upstream.tested),
                    _would_change(plugin, info.upstream, by_operation, assessed, host, choice),
                )
            )
    return states


def _would_change(
    plugin: Candidate,
    upstream: Upstream,
    by_operation: Mapping[str, Candidate],
    assessed: Assessed,
    host: Host,
    choice: Choice,
) -> str:
    """Write in a few phrases the effect of the other version.

    :param by_operation: the plugin in each operation that it offers.
    """
    known_versions = [row.since for row in upstream.releases if not row.refused and row.since != "0"]
    to = max(upstream.tested or known_versions, key=Version, default=None)
    if to is None:
        return "unknown: no version was tested"
    after = {name: _with_version(c, upstream, to, name, host, choice) for name, c in by_operation.items()}
    usable = [name for name, candidate in after.items() if candidate.state is State.AVAILABLE]
    if not usable:
        first = next(iter(after.values()), plugin)
        return f"nothing: {first.reason or first.state}"
    gained = [name for name in usable if by_operation[name].state is not State.AVAILABLE]
    installed = plugin.upstream_version
    phrases = list(_gains(plugin, to, after, gained, assessed, host, choice))
    if installed is not None and _upstream.is_version(installed):
        tested = _upstream.is_tested(upstream, installed)
        if not gained and upstream.tested and not tested:
            phrases.append(f"with {to} nobody warns that {installed} is untested")
        changed_operations = [
            row.operation
            for row in upstream.releases
            if row.operation not in by_operation.keys() - set(usable)
        ]
        phrases += _differences(upstream, installed, to, dict.fromkeys(changed_operations))
        if not phrases and tested:
            return "nothing: this version is tested"
    return "; ".join(phrases) or "unknown: no version was tested"


def _with_version(
    candidate: Candidate, upstream: Upstream, to: str, operation: str, host: Host, choice: Choice
) -> Candidate:
    """Assess a plugin with another version, without findings in files or by probes about the present version."""
    assert candidate.info is not None
    fits = _upstream.reason_against(upstream, candidate.upstream_version, operation) is None
    upgraded = replace(
        candidate,
        info=replace(candidate.info, upstream=replace(upstream, found={})),
        upstream_version=to,
        probe_reason=candidate.probe_reason if fits else None,
    )
    description = operations.get(operation)
    return assess(upgraded, description, host, description.need(), explicit=choice.sampler == candidate.name)


def _gains(
    plugin: Candidate,
    to: str,
    after: Mapping[str, Candidate],
    gained: Sequence[str],
    assessed: Assessed,
    host: Host,
    choice: Choice,
) -> Iterator[str]:
    """Name the plugin that would serve each operation in which the present plugin becomes available."""
    outcomes: dict[str, list[str]] = {}
    for name in gained:
        candidates = [
            after[name] if (c.name, c.distribution) == (plugin.name, plugin.distribution) else c
            for c in assessed[name]
        ]
        try:
            chosen = decide(candidates, host, operations.get(name).need(), choice, operation=name).chosen
        except TokendrawError:
            chosen = ""
        outcomes.setdefault(chosen, []).append(name)
    for chosen, names in outcomes.items():
        where = f" for {all_of(names)}" if names != list(after) else ""
        if chosen == plugin.name:
            yield f"with {to} a program would get {plugin.name}{where}"
        else:
            behind = f", behind {chosen}" if chosen else ""
            yield f"with {to} {plugin.name} would be available{where}{behind}"


def _differences(upstream: Upstream, installed: str, to: str, names: Iterable[str | None]) -> Iterator[str]:
    """Write the differences between the present and the other version, by the table of releases."""
    for operation in names:
        row, target_row = (
            _upstream.release_of(upstream, installed, operation),
            _upstream.release_of(upstream, to, operation),
        )
        if target_row is None or (operation is None and row is not None and row.refused):
            continue  # of the latter it is said already that it becomes available
        words = _upstream.words_of(upstream, installed, operation)
        if words and words != target_row.says:
            change = f": {target_row.change}" if target_row.change else ""
            yield f"{to} {target_row.says} where {installed} {words}{change}"
