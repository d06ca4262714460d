"""Compares installed libraries with the requirements of plugins, by metadata and without imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import importlib_metadata
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tokendraw.backends.discovery.installed import installed_version
from tokendraw.backends.resolution.candidate import Candidate
from tokendraw.cli.describe import described
from tokendraw.errors.formatting import printable

_CORE = "tokendraw"
_EVERYTHING = "all"  # this extra only repeats what the others ask for
_WATCHED = ("torch", "triton", "numpy", "safetensors")


@dataclass(frozen=True)
class Library:
    """A distribution required by samplers."""

    name: str
    installed: str | None
    """Installed version; None if it is not installed."""
    needed: str = ""
    """PEP 440 specifier; "" for any version."""
    needed_by: str = ""
    """Distribution that requires the library, with its extras, as ``tokendraw[files]``; "" if none does."""

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
    owners = dict.fromkeys([_CORE, *(candidate.distribution for candidate in candidates)])
    # A plugin may name its upstream twice: as such, and among the requirements of its distribution.
    requirements = list(dict.fromkeys([*_required(filter(None, owners)), *_upstreams(candidates)]))
    names = {library.name for library in requirements}
    requirements += [Library(name, installed_version(name)) for name in _WATCHED if name not in names]
    order = {name: index for index, name in enumerate(_WATCHED)}
    return sorted(requirements, key=lambda library: (order.get(library.name, len(order)), library.name))


def _required(owners: Iterable[str]) -> Iterator[Library]:
    for owner in owners:
        extras_of: dict[tuple[str, str], list[str]] = {}
        try:
            metadata = importlib_metadata.metadata(owner)
            for requirement in map(Requirement, metadata.get_all("Requires-Dist") or ()):
                name = canonicalize_name(requirement.name)
                if name in _WATCHED:
                    extras = _extras(requirement.marker, metadata.get_all("Provides-Extra") or ())
                    extras_of.setdefault((name, str(requirement.specifier)), []).extend(extras)
        except Exception:  # absent or damaged: which one depends on the damage and on the libraries' versions
            continue
        for (library, needed), extras in extras_of.items():
            if extras:
                owner_extras = "" if "" in extras else f"[{printable(','.join(extras))}]"
                yield Library(library, installed_version(library), needed, f"{owner}{owner_extras}")


def _extras(marker: Marker | None, extras: Iterable[str]) -> list[str]:
    """Name the extras with a requirement on this machine; "" stands for an installation without extras."""
    if marker is None or marker.evaluate({"extra": ""}):
        return [""]
    return [extra for extra in extras if extra != _EVERYTHING and marker.evaluate({"extra": extra})]


def _upstreams(candidates: Iterable[Candidate]) -> Iterator[Library]:
    for candidate in candidates:
        info = described(candidate)
        if info is not None and info.upstream is not None:
            upstream = info.upstream
            yield Library(
                upstream.distribution, candidate.upstream_version, upstream.versions, candidate.distribution
            )
