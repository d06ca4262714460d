"""Reads the entry points of the installed FlashInfer and their parameters from its source.

Importing FlashInfer imports torch and queries the CUDA devices. Functions and their signatures change between versions
with the same first two numbers. So they are read from the source files on disk.
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
"""The modules of the package ``flashinfer`` that hold all that the plugin calls."""


@dataclass(frozen=True)
class Step:
    """A call of an entry point with some of its parameters; the tensors go without saying."""

    entry_point: str
    """Module and function below ``flashinfer``, such as ``sampling.softmax``."""
    parameters: tuple[str, ...]
    """The names of the parameters."""
    top_p_off: float | None = None
    """The top-p that keeps every token, where :data:`tokendraw.probabilities.OFF_TOP_P` does not."""


@dataclass(frozen=True)
class EntryPoints:
    """The public functions of FlashInfer's sampling modules."""

    parameters: Mapping[str, frozenset[str]]
    """Names of the parameters, by the name of a function such as ``sampling.softmax``."""
    folder: Path
    """The package itself."""

    @classmethod
    def installed(cls) -> Self:
        """Read the installed distribution; without its source there are no entry points."""
        folder = package_folder()
        functions = {
            f"{module}.{name}": parameters
            for module in MODULES
            for name, parameters in _functions(folder / f"{module}.py")
        }
        return cls(functions, folder)

    def unsupported(self, *steps: Step) -> str | None:
        """Return the first unsupported step, such as ``sampling.softmax(temperature)``, or None."""
        for step in steps:
            name = step.entry_point
            if name not in self.parameters:
                return f"flashinfer.{name}"
            absent = [parameter for parameter in step.parameters if parameter not in self.parameters[name]]
            if absent:
                return f"flashinfer.{name}({', '.join(absent)})"
        return None


def installed_version() -> str | None:
    """Return the version of the installed distribution; None without an installation."""
    try:
        return str(importlib_metadata.version(DISTRIBUTION))
    except (importlib_metadata.PackageNotFoundError, KeyError):  # or metadata without a version
        return None


def package_folder() -> Path:
    """Return the folder of the installed package ``flashinfer``; without an installation, a missing path."""
    try:
        located = importlib_metadata.distribution(DISTRIBUTION).locate_file("flashinfer")
    except importlib_metadata.PackageNotFoundError:
        return Path("flashinfer is not installed")
    return Path(str(located))


def _functions(source: Path) -> tuple[tuple[str, frozenset[str]], ...]:
    """List the public functions of a module with the names of their parameters; none if reading fails."""
    try:
        return _parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()


@functools.lru_cache(maxsize=len(MODULES))
def _parse(source: bytes) -> tuple[tuple[str, frozenset[str]], ...]:
    """Parse a source once, though describing, probing and building a sampler all read it."""
    functions = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args
            parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            functions.append((node.name, frozenset(argument.arg for argument in parameters)))
    return tuple(functions)
