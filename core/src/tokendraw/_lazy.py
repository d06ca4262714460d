"""Imports public names at their first use: importing tokendraw loads neither torch nor a backend."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, MappingProxyType, ModuleType
from typing import Any


def lazy_names(
    face: str, modules: Sequence[str] = (), removed: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build ``__getattr__`` and ``__dir__`` of the module ``face`` for public names defined in other modules.

    They are those of its block ``if TYPE_CHECKING``, and its ``__all__``.

    :param modules: submodules of a package, which are no part of its ``__all__``.
    :param removed: what to do instead, by names of the last release that are gone: an ImportError says so.
    """
    code = sys._getframe(1).f_code
    homes = functools.cache(lambda: _imports_of(code))

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{face}.{name}")
        if name == "__all__":
            return sorted(homes())
        if name in removed:
            raise ImportError(f"'{face}.{name}' was removed: {removed[name]}.", name=face)
        if name not in homes():
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        try:
            module = _imported(homes()[name])
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from tokendraw._torch.importing import absence

            raise ImportError(absence(repr(name)), name="torch") from error
        value = getattr(module, name)
        setattr(sys.modules[face], name, value)
        return value

    return get, lambda: sorted(homes())


def _imports_of(code: CodeType) -> dict[str, str]:
    """Read the home of each name in a module's block ``if TYPE_CHECKING``; a program may have no sources to read."""
    import dis

    module, homes = "", dict[str, str]()
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_NAME" and step.argval == "TYPE_CHECKING":
            homes.clear()  # the imports before the block are run
        elif step.opname == "IMPORT_NAME":
            module = step.argval
        elif step.opname == "IMPORT_FROM":
            homes[step.argval] = module
    return homes


def names_of(face: str, package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build ``__getattr__`` and ``__dir__`` of a module with the public names of a package in another distribution."""

    def get(name: str) -> Any:
        is_asked_by_python = name.startswith("__") and name != "__all__"
        module = None if is_asked_by_python else _imported(package)
        if module is None or name not in ("__all__", *module.__all__):
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        return getattr(module, name)

    return get, lambda: list(_imported(package).__all__)


def _imported(module: str) -> ModuleType:
    """Import a module; where its distribution is not installed, an ImportError says how to install that."""
    from tokendraw.errors import how_to_install

    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
    name = package.replace("_", "-")
    need = f"{package!r} needs the distribution {name}, which is not installed; run {how_to_install(name)}."
    raise ImportError(need, name=package)
