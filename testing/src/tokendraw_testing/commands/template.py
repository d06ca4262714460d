"""Writes the files of a new plugin from the template: common files, and a part for each operation served.

A folder of the template with the name of an operation is its part. ``part.toml`` describes it: what it is called, its
module and the class in it, what the class is built from, what describing it imports from ``tokendraw.plugin``, and how
it is loaded. Beside that lie the capabilities, and the module.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from tokendraw.tools import operation_names

_ROOT = files("tokendraw_testing") / "_template"
_IMPORTS = ("Host", "PluginInfo", "hookimpl")
OPERATIONS = tuple(name for name in operation_names() if (_ROOT / name).is_dir())
"""The operations that the template has a part for."""


@dataclass(frozen=True)
class File:
    """A file of the new plugin."""

    path: str
    """Where it lies, from the plugin's folder on."""
    holds: str
    text: str


def package_of(name: str) -> str:
    """Name the package of a plugin."""
    return f"{name.replace('-', '_')}_tokendraw"


def plugin_files(name: str, operations: Sequence[str]) -> Iterator[File]:
    """Write the files of a plugin.

    :param operations: some of :data:`OPERATIONS`, in that order.
    """
    parts = {operation: tomllib.loads(_text(operation, "part.toml")) for operation in operations}
    words = _words(name, parts)

    def file(path: str, holds: str, *source: str) -> File:
        return File(path, holds, _fill_in(_text(*source), words))

    package = f"src/{words['package']}"
    yield file(
        "pyproject.toml", "the distribution, its entry point and what it needs", "pyproject.toml.template"
    )
    yield file("README.md", "what its users read", "README.md.template")
    yield file(".gitignore", "what git leaves alone", "gitignore.template")
    about = "the plugin: what it can do, as data; imports no torch"
    yield file(f"{package}/__init__.py", about, "__init__.py.template")
    for operation, part in parts.items():
        module, holds = f"{part['module']}.py", f"the {part['noun']}, in plain PyTorch"
        yield file(f"{package}/{module}", holds, operation, f"{module}.template")
    about = "tokendraw's conformance kit, as pytest tests"
    yield file("tests/test_conformance.py", about, "test_conformance.py.template")


def _words(name: str, parts: dict[str, Any]) -> dict[str, str]:
    """Write the words that differ from plugin to plugin."""
    stem, part_list = "".join(part.capitalize() for part in name.split("-")), list(parts.values())
    words = {
        "name": name,
        "distribution": f"{name}-tokendraw",
        "package": package_of(name),
        "class_name": stem,
        "what": " and ".join(part["noun"] for part in part_list),
    }
    words["selected"] = _fill_in(part_list[0]["load"], {**words, "device": ""})
    local = {**words, "device": ', device="cpu"'}
    words["loads"] = "\n".join(f"{part['module']} = {_fill_in(part['load'], local)}" for part in part_list)
    rows = (f"| `src/{words['package']}/{part['module']}.py` | the {part['noun']} |" for part in part_list)
    words["modules"] = "\n".join(rows)
    names = {name for part in part_list for name in part["imports"]}.union(_IMPORTS)
    words["imports"] = ", ".join(sorted(names, key=_import_order))
    texts = (_fill_in(_text(operation, "capabilities.py.template"), words) for operation in parts)
    words["capabilities"] = "".join(texts).rstrip("\n")
    words["operations"] = ", ".join(f'"{operation}": _{operation.upper()}' for operation in parts)
    words["build"] = _build(words["package"], stem, parts)
    return words


def _build(package: str, stem: str, parts: dict[str, Any]) -> str:
    """Write the body of the hook that builds: the first part serves operations without a part of their own."""
    (_, first), *optional_parts = parts.items()

    def lines(part: dict[str, str], indent: str) -> str:
        class_name = f"{stem}{part['class']}"
        return (
            f"{indent}from {package}.{part['module']} import {class_name}  # imports torch\n\n"
            f"{indent}return {class_name}({part['arguments']})\n"
        )

    tests = (f'        if operation == "{name}":\n{lines(part, " " * 12)}' for name, part in optional_parts)
    return "".join((*tests, lines(first, " " * 8))).rstrip("\n")


def _import_order(name: str) -> tuple[bool, bool, str]:
    """Order names as isort does: constants, classes, functions."""
    return not name.isupper(), not name[0].isupper(), name


def _text(*path: str) -> str:
    return _ROOT.joinpath(*path).read_text(encoding="utf-8")


def _fill_in(text: str, words: dict[str, str]) -> str:
    return Template(text).substitute(words)
