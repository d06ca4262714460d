"""Compares installed libraries with what plugins require and were tested with, by metadata and without imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import importlib_metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tokendraw.backends.description.plugin_info import Upstream
from tokendraw.backends.discovery.entry_points import installed_version
from tokendraw.backends.resolution.candidate import Candidate
from tokendraw.backends.resolution.upstream import is_tested, is_version, release_of, words_of
from tokendraw.cli.describe import JsonObject, described
from tokendraw.errors.formatting import printable

_EVERYTHING = "all"  # this extra only repeats what the others ask for
_WATCHED = ("torch", "triton", "numpy", "safetensors")


@dataclass(frozen=True)
class Library:
    """A distribution required by samplers.

    :ivar installed: Installed version; None if it is not installed.
    :ivar needed: PEP 440 specifier; "" for any version.
    :ivar needed_by: Distribution that requires the library, with its extras, as ``tokendraw[files]``; "" if none does.
    """

    name: str
    installed: str | None
    needed: str = ""
    needed_by: str = ""

    @property
    def fits(self) -> bool:
        """Whether the installed version is in the range; a library may be absent unless a distribution requires it."""
        if self.installed is None:
            return not self.needed_by or self.needed_by.endswith("]")
        try:
            return SpecifierSet(self.needed).contains(self.installed, prereleases=True)
        except ValueError:  # InvalidVersion, or more digits than Python converts
            return False


def libraries(candidates: Sequence[Candidate]) -> list[Library]:
    """List torch, triton, the readers of files, and all upstreams, once for each requiring distribution."""
    owners = dict.fromkeys(["tokendraw", *filter(None, (candidate.distribution for candidate in candidates))])
    requirements = [requirement for owner in owners for requirement in _required(owner)]
    for candidate in candidates:
        info = described(candidate)
        if info is not None and info.upstream is not None:
            name, needed = info.upstream.distribution, info.upstream.versions
            requirements.append(Library(name, candidate.upstream_version, needed, candidate.distribution))
    names = {library.name for library in requirements}
    requirements += [Library(name, installed_version(name)) for name in _WATCHED if name not in names]
    order = {name: index for index, name in enumerate(_WATCHED)}
    # A plugin may name its upstream twice: as such, and among the requirements of its distribution.
    return sorted(
        dict.fromkeys(requirements), key=lambda library: (order.get(library.name, len(order)), library.name)
    )


def _required(owner: str) -> Iterator[Library]:
    """Yield the watched requirements of a distribution, each with the extras that bring it."""
    extras_of: dict[tuple[str, str], list[str]] = {}
    try:
        metadata = importlib_metadata.metadata(owner)
        # "" stands for an installation without extras.
        extras = ["", *(extra for extra in metadata.get_all("Provides-Extra") or () if extra != _EVERYTHING)]
        for requirement in map(Requirement, metadata.get_all("Requires-Dist") or ()):
            name, marker = canonicalize_name(requirement.name), requirement.marker
            if name in _WATCHED:
                key = (name, str(requirement.specifier))
                applies = [extra for extra in extras if marker is None or marker.evaluate({"extra": extra})]
                extras_of.setdefault(key, []).extend(applies)
    except Exception:  # absent or damaged: which one depends on the damage and on the libraries' versions
        return
    for (library, needed), applies in extras_of.items():
        if applies:
            suffix = "" if "" in applies else f"[{printable(','.join(applies))}]"
            yield Library(library, installed_version(library), needed, f"{owner}{suffix}")


def upstreams(plugins: Iterable[Candidate]) -> list[JsonObject]:
    """Describe the upstream of each of the plugins, under the keys documented in :mod:`tokendraw.cli.verbs.doctor`."""
    states = []
    for plugin in plugins:
        info, installed = described(plugin), plugin.upstream_version
        if info is not None and info.upstream is not None:
            states.append(
                {
                    "name": info.upstream.distribution,
                    "plugin": plugin.name,
                    "installed": installed,
                    "needed": info.upstream.versions,
                    "tested": info.upstream.tested,
                    "would_change": _would_change(info.upstream, installed),
                }
            )
    return states


def _would_change(upstream: Upstream, installed: str | None) -> str:
    """Write the differences between the installed and the other version, by the table of releases."""
    known_versions = [row.since for row in upstream.releases if not row.refused and row.since != "0"]
    to = max(filter(is_version, upstream.tested or known_versions), key=Version, default=None)
    if installed is None or not is_version(installed):
        return "unknown"
    if is_tested(upstream, installed):
        is_same = "nothing: this version is tested"
    else:
        is_same = "unknown" if to is None else "nothing that is known; this version is untested"
    changes = []
    for operation in dict.fromkeys(row.operation for row in upstream.releases if to is not None):
        words, row = words_of(upstream, installed, operation), release_of(upstream, str(to), operation)
        if row is not None and words and words != row.says:
            changes.append(f"{to} {row.says} where {installed} {words}{row.change and f': {row.change}'}")
    return "; ".join(changes) or is_same
