"""Compares the installed versions of upstream libraries with the newest that a plugin was tested with, or knows of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

from tokendraw.backends.description.plugin_info import Upstream
from tokendraw.backends.resolution.candidate import Candidate
from tokendraw.backends.resolution.upstream import is_tested, is_version, release_of, words_of
from tokendraw.cli.describe import described


@dataclass(frozen=True)
class UpstreamState:
    """A library and the plugin that calls the library.

    :ivar installed: Installed version; None if it is not installed.
    :ivar needed: PEP 440 specifier.
    :ivar would_change: Phrases about what the newest tested, or known, version does in another way.
    """

    name: str
    plugin: str
    installed: str | None
    needed: str
    tested: tuple[str, ...]
    would_change: str


def upstreams(plugins: Iterable[Candidate]) -> list[UpstreamState]:
    """Look at the upstream of each of the plugins."""
    states = []
    for plugin in plugins:
        info, installed = described(plugin), plugin.upstream_version
        if info is not None and info.upstream is not None:
            library = info.upstream
            names = (library.distribution, plugin.name, installed, library.versions, library.tested)
            states.append(UpstreamState(*names, _would_change(library, installed)))
    return states


def _would_change(upstream: Upstream, installed: str | None) -> str:
    """Write the differences between the installed and the other version, by the table of releases."""
    known_versions = [row.since for row in upstream.releases if not row.refused and row.since != "0"]
    to = max(upstream.tested or known_versions, key=Version, default=None)
    if to is None or installed is None or not is_version(installed):
        return "unknown"
    changes = []
    for operation in dict.fromkeys(row.operation for row in upstream.releases):
        words, row = words_of(upstream, installed, operation), release_of(upstream, to, operation)
        if row is not None and words and words != row.says:
            changes.append(f"{to} {row.says} where {installed} {words}{row.change and f': {row.change}'}")
    is_same = "nothing: this version is tested" if is_tested(upstream, installed) else "nothing that is known"
    return "; ".join(changes) or is_same
