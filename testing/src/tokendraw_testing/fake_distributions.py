"""Writes distributions for tests of discovery: real metadata and modules in a folder, without mocks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_ENTRY = re.compile(r"[^\[#;=\s][^=\n]*")


def fake_dist(
    tmp_path: Path,
    name: str,
    version: str = "1.0",
    *,
    plugins: Mapping[str, str] | None = None,
    filters: Mapping[str, str] | None = None,
    operations: Mapping[str, str] | None = None,
    modules: Mapping[str, str] | None = None,
    metadata: str | None = METADATA,
    where: str | None = None,
) -> Path:
    """Write a distribution as an installer leaves it, and return the folder to put on ``sys.path``.

    A process of its own finds the folder through ``PYTHONPATH``; ``docs/plugin-authors.md`` has an example.

    :param tmp_path: the distribution gets a sub-folder of its own here.
    :param plugins: entry points of the group ``tokendraw.plugins`` by name: ``{"acme": "acme_plugin:plugin"}``.
        What they refer to need not be there.
    :param filters: entry points of the group ``tokendraw.filters``, likewise: ``{"acme": "acme_filters:Acme"}``.
    :param operations: entry points of the group ``tokendraw.operations``, likewise.
    :param modules: sources by module name, indented as one likes; ``package.module`` makes the package too.
    :param metadata: text of METADATA, where ``{name}`` and ``{version}`` are filled in; None leaves the file out.
    :param where: name of the sub-folder, so that one distribution can be installed twice. Default: name and
        version.
    :raises ValueError: an installer would not accept the name of the distribution, of an entry point or of a module.
    :raises FileExistsError: the sub-folder holds this version of the distribution already.
    """
    groups = {"plugins": plugins or {}, "filters": filters or {}, "operations": operations or {}}
    _check("name", [name], _NAME.fullmatch, "a distribution's name", "Use letters, digits and dots")
    for group, entries in groups.items():
        _check(group, entries, _ENTRY.fullmatch, "names of entry points", "Use letters and dashes")
    _check("modules", modules or (), _MODULE.fullmatch, "names that can be imported", "Use an identifier")
    folder = tmp_path / (where or f"{name}-{version}")
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    if info.exists():
        raise FileExistsError(f"{name!r} {version} needs a new folder, found {str(info)!r}. Pass where=.")
    files = _sources(folder, modules or {})
    if entry_points := "".join(_section(group, entries) for group, entries in groups.items() if entries):
        files[info / "entry_points.txt"] = entry_points
    if metadata is not None:
        files[info / "METADATA"] = metadata.replace("{name}", name).replace("{version}", version)
    info.mkdir(parents=True)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _section(group: str, entries: Mapping[str, str]) -> str:
    return "".join([f"[tokendraw.{group}]\n", *(f"{name} = {value}\n" for name, value in entries.items())])


def _sources(folder: Path, modules: Mapping[str, str]) -> dict[Path, str]:
    """Return file contents by path, with an empty ``__init__.py`` for each package without a source."""
    files: dict[Path, str] = {}
    for module, source in modules.items():
        parts = module.split(".")
        path = folder.joinpath(*parts)
        is_package = any(name.startswith(f"{module}.") for name in modules)
        files[path / "__init__.py" if is_package else path.with_suffix(".py")] = textwrap.dedent(source)
        for depth in range(1, len(parts)):
            files.setdefault(folder.joinpath(*parts[:depth], "__init__.py"), "")
    return files


def _check(
    subject: str, names: Iterable[str], is_right: Callable[[str], object], needed: str, advice: str
) -> None:
    for name in names:
        if not is_right(name):
            raise ValueError(f"'{subject}' needs {needed}, found {name!r}. {advice}.")
