"""Compares the installed libraries with what plugins require, by their metadata and without importing them."""

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
    """A distribution that samplers depend on."""

    name: str
    installed: str | None
    """Installed version; None if it is not installed."""
    needed: str = ""
    """PEP 440 specifier; "" for any version."""
    needed_by: str = ""
    """Distribution that requires it, with the extras that do, such as ``tokendraw[files]``; "" if none does."""

    @property
    def fits(self) -> bool:
        """Whether the installed version is in the range; it may be absent if only an extra or nothing requires it."""
        if self.installed is None:
            return not self.needed_by or self.needed_by.endswith("]")
        try:
            return SpecifierSet(self.needed).contains(self.installed, prereleases=True)
        except ValueError:  # InvalidVersion, or more digits than Python converts
            return False


def libraries(candidates: Sequence[Candidate]) -> list[Library]:
    """List torch, triton, the readers of files, and all upstreams, once for each distribution that requires them."""
    owners = dict.fromkeys([_CORE, *(candidate.distribution for candidate in candidates)])
    # A plugin may name its upstream twice: as such, and among the requirements of its distribution.
    found = list(dict.fromkeys([*_required(filter(None, owners)), *_upstreams(candidates)]))
    named = {library.name for library in found}
    found += [Library(name, installed_version(name)) for name in _WATCHED if name not in named]
    order = {name: place for place, name in enumerate(_WATCHED)}
    return sorted(found, key=lambda library: (order.get(library.name, len(order)), library.name))


def _required(owners: Iterable[str]) -> Iterator[Library]:
    for owner in owners:
        askers: dict[tuple[str, str], list[str]] = {}
        try:
            metadata = importlib_metadata.metadata(owner)
            for requirement in map(Requirement, metadata.get_all("Requires-Dist") or ()):
                name = canonicalize_name(requirement.name)
                if name in _WATCHED:
                    extras = _extras(requirement.marker, metadata.get_all("Provides-Extra") or ())
                    askers.setdefault((name, str(requirement.specifier)), []).extend(extras)
        except Exception:  # absent or damaged: which one depends on the damage and on the libraries' versions
            continue
        for (library, needed), extras in askers.items():
            if extras:
                asking = "" if "" in extras else f"[{printable(','.join(extras))}]"
                yield Library(library, installed_version(library), needed, f"{owner}{asking}")


def _extras(marker: Marker | None, extras: Iterable[str]) -> list[str]:
    """Name the extras that need a requirement on this machine; "" stands for an installation without extras."""
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
