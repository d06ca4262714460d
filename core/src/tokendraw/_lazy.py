"""Imports public names at their first use: importing tokendraw loads neither torch nor a backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
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


def names_of(face: str, package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build ``__getattr__`` and ``__dir__`` of a module that shows the public names of another distribution's package.

    Both raise an ImportError that says what to install where the distribution is missing.
    """

    def load() -> ModuleType:
        try:
            return importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            from tokendraw.errors.install_commands import how_to_install

            distribution = package.replace("_", "-")
            raise ImportError(
                f"{package!r} needs the distribution {distribution}, which is not installed; run "
                f"{how_to_install(distribution)}.",
                name=package,
            ) from None

    def get(name: str) -> Any:
        is_asked_by_python = name.startswith("__") and name != "__all__"
        module = None if is_asked_by_python else load()
        if module is None or name not in ("__all__", *module.__all__):
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return getattr(module, name)

    return get, lambda: list(load().__all__)
