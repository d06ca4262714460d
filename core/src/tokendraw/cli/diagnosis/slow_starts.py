"""Finds plugins with heavy imports, which delay every command."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tokendraw.backends.discovery.heavy_imports import heavy_imports
from tokendraw.backends.resolution.candidate import Candidate


def heavy_imports_of(candidates: Sequence[Candidate]) -> dict[str, tuple[str, ...]]:
    """Load each plugin that described itself in a new Python process, side by side, and name the heavy imports.

    :returns: modules by plugin, without the plugins that have none.
    """
    loaded = [c for c in candidates if c.info is not None]
    with ThreadPoolExecutor() as pool:
        modules = pool.map(heavy_imports, [candidate.entry_point for candidate in loaded])
        return {candidate.name: names for candidate, names in zip(loaded, modules, strict=True) if names}
