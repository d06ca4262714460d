"""Compares installed libraries with the requirements of plugins, by metadata and without imports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import importlib_metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tokendraw.backends.discovery.installed import installed_version
from tokendraw.backends.resolution.candidate import Candidate
from tokendraw.cli.describe import described
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
