"""Which entry points the installed FlashInfer has, and with which parameters: read from its source, never imported.

Importing FlashInfer imports torch and asks the CUDA devices what they are. Its functions are what decides what can be
called, and their signatures change between versions that have the same first two numbers, so they are looked at as
they stand on disk.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import importlib_metadata

DISTRIBUTION = "flashinfer-python"
MODULES = ("sampling", "cake_sampling")
"""Of the package ``flashinfer``: all that the plugin calls stands in these."""

Needs = Mapping[str, tuple[str, ...]]
"""Entry points such as ``sampling.softmax``, each with parameters that it has to have."""


@dataclass(frozen=True)
class EntryPoints:
    """The public functions of FlashInfer's sampling modules."""

    parameters: Mapping[str, frozenset[str]]
    """By name, such as ``sampling.softmax``: the names of its parameters."""
    folder: Path
    """The package itself."""

    @classmethod
    def installed(cls) -> Self:
        """Look at the installed distribution; without any entry point if there is none, or no source of it."""
        folder = package_folder()
        found = {
            f"{module}.{name}": parameters
            for module in MODULES
            for name, parameters in _functions(folder / f"{module}.py")
        }
        return cls(found, folder)

    def lacking(self, needs: Needs) -> str | None:
        """Name the first of ``needs`` that is not there, such as ``sampling.softmax(temperature)``; None if all are."""
        for name, wanted in needs.items():
            if name not in self.parameters:
                return f"flashinfer.{name}"
            absent = [parameter for parameter in wanted if parameter not in self.parameters[name]]
            if absent:
                return f"flashinfer.{name}({', '.join(absent)})"
        return None


def package_folder() -> Path:
    """Where the installed distribution keeps the package ``flashinfer``; a path that is not there if there is none."""
    try:
        located = importlib_metadata.distribution(DISTRIBUTION).locate_file("flashinfer")
    except importlib_metadata.PackageNotFoundError:
        return Path("flashinfer is not installed")
    return Path(str(located))


def _functions(source: Path) -> tuple[tuple[str, frozenset[str]], ...]:
    """Every public function of a module with the names of its parameters; none if it cannot be read."""
    try:
        return _parsed(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()


@functools.lru_cache(maxsize=len(MODULES))
def _parsed(source: bytes) -> tuple[tuple[str, frozenset[str]], ...]:
    """A source is parsed once, though describing, probing and building a sampler each ask for it."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            found.append((node.name, frozenset(argument.arg for argument in every)))
    return tuple(found)
