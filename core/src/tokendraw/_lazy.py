"""Imports public names at their first use: importing tokendraw loads neither torch nor a backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(face: dict[str, Any], homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Build the ``__getattr__`` of a module for public names defined in other modules.

    :param face: the module's ``globals()``.
    :param homes: by module, relative to ``tokendraw``, the names that it holds.
    """
    home_of = {name: f"tokendraw.{module}" for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {face['__name__']!r} has no attribute {name!r}")
        value = face[name] = getattr(importlib.import_module(home_of[name]), name)
        return value

    return get
