"""Finds the folders of tokendraw's own plugins: a distribution can claim any name, the folder tells more."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokendraw
from tokendraw.backends.resolution.candidate import Candidate
from tokendraw.errors.formatting import printable


@dataclass(frozen=True)
class Origin:
    """The folder, or the file, of an imported package.

    :ivar name: ``tokendraw`` for the core, else the name of a plugin.
    :ivar path: Path with symbolic links resolved; "" for a missing module.
    :ivar beside_core: Whether the package lies in the core's site-packages, or in the same checkout.
    """

    name: str
    path: str
    beside_core: bool


def origins(candidates: Iterable[Candidate]) -> list[Origin]:
    """Look up the core and every plugin with a name reserved for tokendraw, without imports."""
    core = Path(tokendraw.__file__).resolve().parent
    checkout = core.parents[2] if core.parts[-3:] == ("core", "src", "tokendraw") else None
    packages = [Origin("tokendraw", printable(str(core)), True)]
    for candidate in candidates:
        if candidate.first_party:
            path = _path(candidate.entry_point)
            if path is None:
                packages.append(Origin(candidate.name, "", False))
            else:
                in_checkout = checkout is not None and any(
                    path.is_relative_to(checkout / folder) for folder in ("plugins", "engine_ops", "ranks")
                )
                is_beside = in_checkout or path.parent == core.parent
                packages.append(Origin(candidate.name, printable(str(path)), is_beside))
    return packages


def _path(entry_point: str) -> Path | None:
    """Find the folder of the package in an entry point, or the file of a single module."""
    try:
        spec = importlib.util.find_spec(entry_point.partition(":")[0].partition(".")[0].strip())
    except (ImportError, ValueError):  # no name of a module, or the remains of a failed import
        return None
    path = spec and next(iter(spec.submodule_search_locations or ()), spec.origin)
    return Path(path).resolve() if path else None
