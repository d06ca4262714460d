"""Imports public names at their first use: importing tokendraw loads neither torch nor a backend."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any


def lazy_names(
    face: str, modules: Sequence[str] = (), moved_names: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build ``__getattr__`` and ``__dir__`` of a module for public names defined in other modules.

    The names are those that its block ``if TYPE_CHECKING`` imports, as type checkers read them, so that each is written
    once. They are also the module's ``__all__``.

    :param face: name of the module.
    :param modules: submodules of a package, which are no part of its ``__all__``.
    :param moved_names: modules of tokendraw-engine-ops that have the former names of the face.
    """

    @functools.cache
    def homes() -> dict[str, str]:
        """Read the defining module of each name."""
        loader: Any = sys.modules[face].__loader__
        blocks = [node for node in ast.parse(loader.get_source(face)).body if isinstance(node, ast.If)]
        (block,) = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{face}.{name}")
        if name == "__all__":
            return sorted(homes())
        if name not in homes():
            if name in moved_names:
                raise moved(f"{face}.{name}", f"{moved_names[name]}.{name}")
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes()[name]), name)
        setattr(sys.modules[face], name, value)
        return value

    return get, lambda: sorted(homes())


def moved(old: str, new: str) -> ImportError:
    """Word the error about a name that is in tokendraw-engine-ops now. Goes with the release after 0.1."""
    from tokendraw.errors.install_commands import how_to_install

    return ImportError(
        f"{old!r} is {new} now, of the distribution tokendraw-engine-ops; to have it, run "
        f"{how_to_install('tokendraw-engine-ops')}.",
        name=old,
    )


def names_of(face: str, package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build ``__getattr__`` and ``__dir__`` of a module with the public names of a package in another distribution.

    Without the distribution both raise an ImportError with the command to install it.
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
