"""Looks at the libraries that plugins call: installed and required versions, and what another version would change.

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
    """A library and the plugin that calls it."""

    name: str
    plugin: str
    installed: str | None
    """Installed version; None if it is not installed."""
    needed: str
    """PEP 440 specifier."""
    tested: tuple[str, ...]
    would_change: str
    """Says what the newest version that was tested, or is known, would change here."""


def upstreams(
    plugins: Iterable[Candidate], assessed: Assessed, host: Host, choice: Choice
) -> list[UpstreamState]:
    """Look at the upstream of each of the plugins."""
    states = []
    for plugin in plugins:
        info = described(plugin)
        if info is not None and info.upstream is not None:
            own = {
                name: next(c for c in found if (c.name, c.distribution) == (plugin.name, plugin.distribution))
                for name, found in assessed.items()
                if name in info.operations
            }
            states.append(
                UpstreamState(
                    info.upstream.distribution,
                    plugin.name,
                    plugin.upstream_version,
                    info.upstream.versions,
                    tuple(info.upstream.tested),
                    _would_change(plugin, info.upstream, own, assessed, host, choice),
                )
            )
    return states


def _would_change(
    plugin: Candidate,
    upstream: Upstream,
    own: Mapping[str, Candidate],
    assessed: Assessed,
    host: Host,
    choice: Choice,
) -> str:
    """Say in few phrases what the other version would change.

    :param own: the plugin in each operation that it offers.
    """
    known = [row.since for row in upstream.releases if not row.refused and row.since != "0"]
    to = max(upstream.tested or known, key=Version, default=None)
    if to is None:
        return "unknown: no version was tested"
    after = {name: _with_version(c, upstream, to, name, host, choice) for name, c in own.items()}
    usable = [name for name, candidate in after.items() if candidate.state is State.AVAILABLE]
    if not usable:
        first = next(iter(after.values()), plugin)
        return f"nothing: {first.reason or first.state}"
    gained = [name for name in usable if own[name].state is not State.AVAILABLE]
    installed = plugin.upstream_version
    phrases = list(_gains(plugin, to, after, gained, assessed, host, choice))
    if installed is not None and _upstream.is_version(installed):
        tested = _upstream.is_tested(upstream, installed)
        if not gained and upstream.tested and not tested:
            phrases.append(f"with {to} nobody warns that {installed} is untested")
        about = [row.operation for row in upstream.releases if row.operation not in own.keys() - set(usable)]
        phrases += _differences(upstream, installed, to, dict.fromkeys(about))
        if not phrases and tested:
            return "nothing: this version is tested"
    return "; ".join(phrases) or "unknown: no version was tested"


def _with_version(
    candidate: Candidate, upstream: Upstream, to: str, operation: str, host: Host, choice: Choice
) -> Candidate:
    """Assess a plugin with another version: what was found in the files, or by a probe, was about the present one."""
    assert candidate.info is not None
    fits = _upstream.reason_against(upstream, candidate.upstream_version, operation) is None
    other = replace(
        candidate,
        info=replace(candidate.info, upstream=replace(upstream, found={})),
        upstream_version=to,
        probe_reason=candidate.probe_reason if fits else None,
    )
    about = operations.get(operation)
    return assess(other, about, host, about.need(), explicit=choice.sampler == candidate.name)


def _gains(
    plugin: Candidate,
    to: str,
    after: Mapping[str, Candidate],
    gained: Sequence[str],
    assessed: Assessed,
    host: Host,
    choice: Choice,
) -> Iterator[str]:
    """Say who would serve the operations in which the plugin becomes available."""
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


def _differences(upstream: Upstream, installed: str, to: str, about: Iterable[str | None]) -> Iterator[str]:
    """Say what the other version does where the present one does something else, as the table has it."""
    for operation in about:
        row, other = (
            _upstream.release_of(upstream, installed, operation),
            _upstream.release_of(upstream, to, operation),
        )
        if other is None or (operation is None and row is not None and row.refused):
            continue  # of the latter it is said already that it becomes available
        words = _upstream.words_of(upstream, installed, operation)
        if words and words != other.says:
            change = f": {other.change}" if other.change else ""
            yield f"{to} {other.says} where {installed} {words}{change}"
