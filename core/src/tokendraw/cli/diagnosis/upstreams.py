"""Compares versions of upstream libraries: installed, required, and the effect of another version.

The other version is the newest that was tested, or without one the newest that the plugin knows of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from tokendraw.backends.description.plugin_info import Upstream
from tokendraw.backends.resolution import upstream as _upstream
from tokendraw.backends.resolution.candidate import Candidate, State
from tokendraw.cli.describe import described
from tokendraw.errors.formatting import all_of


@dataclass(frozen=True)
class UpstreamState:
    """A library and the plugin that calls the library.

    :ivar installed: Installed version; None if it is not installed.
    :ivar needed: PEP 440 specifier.
    :ivar would_change: Phrases about the effect of the newest tested, or known, version on this machine.
    """

    name: str
    plugin: str
    installed: str | None
    needed: str
    tested: tuple[str, ...]
    would_change: str


def upstreams(
    plugins: Iterable[Candidate], assessed: Mapping[str, Sequence[Candidate]]
) -> list[UpstreamState]:
    """Look at the upstream of each of the plugins.

    :param assessed: all candidates by operation, as :func:`tokendraw.providers.resolve.discover_all` finds them.
    """
    states = []
    for plugin in plugins:
        info = described(plugin)
        if info is not None and info.upstream is not None:
            offers = {
                operation: candidate
                for operation, candidates in assessed.items()
                for candidate in candidates
                if operation in info.operations
                and (candidate.name, candidate.distribution) == (plugin.name, plugin.distribution)
            }
            library, installed = info.upstream, plugin.upstream_version
            effect = "; ".join(_changes(plugin, library, offers))
            state = UpstreamState(
                library.distribution, plugin.name, installed, library.versions, library.tested, effect
            )
            states.append(state)
    return states


def _changes(plugin: Candidate, upstream: Upstream, offers: Mapping[str, Candidate]) -> list[str]:
    """Write in a few phrases the effect of the other version.

    :param offers: the plugin in each operation that it offers.
    """
    unknown = ["unknown: no version was tested"]
    known_versions = [row.since for row in upstream.releases if not row.refused and row.since != "0"]
    to = max(upstream.tested or known_versions, key=Version, default=None)
    if to is None:
        return unknown
    installed, by_number = plugin.upstream_version, replace(upstream, found={})
    reasons = {name: candidate.reason or "" for name, candidate in offers.items()}
    for name, candidate in offers.items():
        if candidate.reason == _upstream.reason_against(upstream, installed, name):  # no other reason
            reasons[name] = _upstream.reason_against(by_number, to, name) or ""
    usable = [name for name, reason in reasons.items() if not reason]
    if not usable:
        return [f"nothing: {next(iter(reasons.values()), plugin.state)}"]
    phrases = []
    gained = [name for name in usable if offers[name].state is not State.AVAILABLE]
    if gained:
        where = f" for {all_of(gained)}" if gained != list(offers) else ""
        phrases.append(f"with {to} {plugin.name} would be available{where}")
    if installed is None or not _upstream.is_version(installed):
        return phrases or unknown
    tested = _upstream.is_tested(upstream, installed)
    if not gained and upstream.tested and not tested:
        phrases.append(f"with {to} nobody warns that {installed} is untested")
    phrases += _differences(upstream, installed, to, offers.keys() - set(usable))
    return phrases or (["nothing: this version is tested"] if tested else unknown)


def _differences(upstream: Upstream, installed: str, to: str, unusable: set[str]) -> Iterator[str]:
    """Write the differences between the present and the other version, by the table of releases."""
    for operation in dict.fromkeys(row.operation for row in upstream.releases):
        words = _upstream.words_of(upstream, installed, operation)
        row = _upstream.release_of(upstream, to, operation)
        if operation not in unusable and row is not None and words and words != row.says:
            change = f": {row.change}" if row.change else ""
            yield f"{to} {row.says} where {installed} {words}{change}"
