"""Finds the folders of tokendraw's own plugins: a distribution can claim any name, the folder tells more."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tokendraw
from tokendraw.backends.resolution.candidate import Candidate
from tokendraw.errors.formatting import printable

_CHECKOUT = ("core", "src", "tokendraw")
"""Path of the core in a checkout."""


@dataclass(frozen=True)
class Origin:
    """The folder, or the file, of an imported package."""

    name: str
    """``tokendraw`` for the core, else the name of a plugin."""
    path: str
    """Path with symbolic links resolved; "" for a missing module."""
    beside_core: bool
    """Whether the package lies in the core's site-packages, or in the same checkout."""


def origins(candidates: Iterable[Candidate]) -> list[Origin]:
    """Look up the core and every plugin with a name reserved for tokendraw, without imports."""
    core = Path(tokendraw.__file__).resolve().parent
    return [Origin("tokendraw", printable(str(core)), True), *_plugins(candidates, core)]


def _plugins(candidates: Iterable[Candidate], core: Path) -> Iterator[Origin]:
    for candidate in candidates:
        if candidate.first_party:
            path = _path(candidate.entry_point)
            text = "" if path is None else printable(str(path))
            yield Origin(candidate.name, text, path is not None and _is_beside(path, core))


def _path(entry_point: str) -> Path | None:
    """Find the folder of the package in an entry point, or the file of a single module."""
    try:
        spec = importlib.util.find_spec(entry_point.partition(":")[0].partition(".")[0].strip())
    except (ImportError, ValueError):  # no name of a module, or the remains of a failed import
        return None
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return None if place is None else Path(place).resolve()


def _is_beside(path: Path, core: Path) -> bool:
    if path.parent == core.parent:
        return True
    return core.parts[-3:] == _CHECKOUT and path.is_relative_to(core.parents[2] / "plugins")
