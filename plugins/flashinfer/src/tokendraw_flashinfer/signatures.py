"""Reads from the installed FlashInfer's source which entry points it has, and with which parameters.

Importing FlashInfer imports torch and asks the CUDA devices what they are. Which functions there are decides what can
be called, and their signatures change between versions that have the same first two numbers. So they are read from the
source files on disk.
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
    """A call of one entry point: what is called, and which parameters it is given beside its tensors."""

    entry_point: str
    """Module and function below ``flashinfer``, such as ``sampling.softmax``."""
    parameters: tuple[str, ...]
    """The names of the parameters."""
    top_p_off: float | None = None
    """The top-p with which it keeps every token, where :data:`tokendraw.probabilities.OFF_TOP_P` does not."""


@dataclass(frozen=True)
class EntryPoints:
    """The public functions of FlashInfer's sampling modules."""

    parameters: Mapping[str, frozenset[str]]
    """Names of the parameters, by the name of a function such as ``sampling.softmax``."""
    folder: Path
    """The package itself."""

    @classmethod
    def installed(cls) -> Self:
        """Read the installed distribution; without one, or without its source, there are no entry points."""
        folder = package_folder()
        found = {
            f"{module}.{name}": parameters
            for module in MODULES
            for name, parameters in _functions(folder / f"{module}.py")
        }
        return cls(found, folder)

    def lacking(self, *steps: Step) -> str | None:
        """Name the first of the steps that cannot be taken, such as ``sampling.softmax(temperature)``, or None."""
        for step in steps:
            name = step.entry_point
            if name not in self.parameters:
                return f"flashinfer.{name}"
            absent = [parameter for parameter in step.parameters if parameter not in self.parameters[name]]
            if absent:
                return f"flashinfer.{name}({', '.join(absent)})"
        return None


def installed_version() -> str | None:
    """Return the version of the installed distribution; None without one."""
    try:
        return str(importlib_metadata.version(DISTRIBUTION))
    except (importlib_metadata.PackageNotFoundError, KeyError):  # or metadata without a version
        return None


def package_folder() -> Path:
    """Return the folder of the installed package ``flashinfer``; without one, a path that does not exist."""
    try:
        located = importlib_metadata.distribution(DISTRIBUTION).locate_file("flashinfer")
    except importlib_metadata.PackageNotFoundError:
        return Path("flashinfer is not installed")
    return Path(str(located))


def _functions(source: Path) -> tuple[tuple[str, frozenset[str]], ...]:
    """List the public functions of a module with the names of their parameters; none if it cannot be read."""
    try:
        return _parsed(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()


@functools.lru_cache(maxsize=len(MODULES))
def _parsed(source: bytes) -> tuple[tuple[str, frozenset[str]], ...]:
    """Parse a source once, though describing, probing and building a sampler each ask for it."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            found.append((node.name, frozenset(argument.arg for argument in every)))
    return tuple(found)
