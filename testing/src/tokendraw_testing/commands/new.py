"""``tokendraw new NAME DIR``: a plugin to start from, as a complete distribution.

JSON: ``name``, ``distribution``, ``package``, ``operations``, ``directory``, ``files`` (each with ``path``, below the
directory, and ``holds``) and ``next`` (the commands that install and test it).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

import click
from packaging.utils import canonicalize_name

from tokendraw import InvalidParameterError, TokendrawError
from tokendraw.commands import GuardedCommand, json_option, print_json, print_table, removed_option, warn
from tokendraw.resolution import Candidate, read_settings
from tokendraw.tools import FIRST_PARTY, NAME_RULE, all_of, find_entry_points, format_value, is_name

_TEMPLATES = files("tokendraw_testing") / "_template"


class _File(NamedTuple):
    """A file of the new plugin."""

    path: str
    """Where it lies, from the plugin's folder on."""
    holds: str
    text: str


@click.command(cls=GuardedCommand, short_help="Start a plugin of your own.")
@click.argument("name")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@removed_option(
    "--operation",
    "'tokendraw new' writes a sampler; for another operation start from tokendraw-native's code, see "
    "docs/plugin-authors.md",
)
@json_option
def new(name: str, directory: Path, as_json: bool) -> None:
    """Write a complete plugin, NAME-tokendraw, into the folder DIR.

    It passes the conformance kit as it is: plain PyTorch, to be replaced piece by piece. NAME is what users will
    select. DIR has to be empty or not there yet; nothing is ever overwritten.
    """
    _check_name(name)
    distribution = f"{name}-tokendraw"
    settings = read_settings()
    warn(_already_installed(name, distribution), strict=settings.strict)
    written = list(_plugin_files(name, distribution))
    _write(directory, written)
    steps = _next_steps(name, directory)
    if as_json:
        print_json(
            {
                "name": name,
                "distribution": distribution,
                "package": _package_of(name),
                "operations": ["sample"],
                "directory": str(directory),
                "files": [{"path": file.path, "holds": file.holds} for file in written],
                "next": list(steps),
            }
        )
        return
    click.echo(f"{click.style(distribution, bold=True)} in {_place(directory)}")
    print_table(("", ""), [(file.path, file.holds) for file in written], indent=2)
    click.echo("\nnext")
    for step in steps:
        click.echo(f"  {step}")


def _package_of(name: str) -> str:
    return f"{name.replace('-', '_')}_tokendraw"


def _plugin_files(name: str, distribution: str) -> Iterator[_File]:
    """Fill in the template."""
    package = _package_of(name)
    class_name = "".join(part.capitalize() for part in name.split("-"))
    words = {"name": name, "distribution": distribution, "package": package, "class_name": class_name}
    for source, path, holds in (
        ("pyproject.toml", "pyproject.toml", "the distribution, its entry point and what it needs"),
        ("README.md", "README.md", "what its users read"),
        ("gitignore", ".gitignore", "what git leaves alone"),
        (
            "__init__.py",
            f"src/{package}/__init__.py",
            "the plugin: what it can do, as data; imports no torch",
        ),
        ("sampler.py", f"src/{package}/sampler.py", "the sampler, in plain PyTorch"),
        ("test_conformance.py", "tests/test_conformance.py", "tokendraw's conformance kit, as pytest tests"),
    ):
        text = (_TEMPLATES / f"{source}.template").read_text(encoding="utf-8")
        yield _File(path, holds, Template(text).substitute(words))


def _check_name(name: str) -> None:
    if not is_name(name):
        suggestion = "-".join(re.findall("[a-z0-9]+", name.lower())).lstrip("0123456789-")
        raise InvalidParameterError(
            f"'NAME' needs {NAME_RULE}, found {format_value(name)}. "
            f"Choose a name such as {suggestion if is_name(suggestion) else 'acme'}."
        )
    if name in FIRST_PARTY:
        raise InvalidParameterError(
            f"'NAME' needs a name of its own, found {name!r}, which is reserved for the distribution "
            f"{FIRST_PARTY[name]}. Choose another."
        )


def _already_installed(name: str, distribution: str) -> list[str]:
    """Warn if the plugin is installed already; refuse a name claimed by another distribution."""
    entry_points = find_entry_points()
    claims = [entry for entry in entry_points if entry.name == name and entry.distribution]
    conflicts = [c for c in claims if canonicalize_name(c.distribution) != distribution]
    if conflicts:
        raise TokendrawError(
            f"'NAME' needs a name that no other distribution claims, found {name!r} in {_owners(conflicts)}. "
            "Choose another, or uninstall that."
        )
    return [f"{_owners(claims)} is installed already; installing this one replaces it." for _ in claims[:1]]


def _owners(candidates: Sequence[Candidate]) -> str:
    """List distributions with their versions."""
    return all_of(f"{candidate.distribution} {candidate.version}".rstrip() for candidate in candidates)


def _write(directory: Path, files: Sequence[_File]) -> None:
    """Write every file to a folder that is empty or missing.

    :raises TokendrawError: it is neither, or cannot be written to.
    """
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            holds = "one with files in it" if directory.is_dir() else "a file"
            raise TokendrawError(
                f"'DIR' needs a folder that is empty or not there, found {str(directory)!r}, {holds}. "
                "Choose another."
            )
        for template in files:
            target = directory / template.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:  # x: whatever appeared meanwhile stays as it is
                file.write(template.text)
    except OSError as error:
        raise TokendrawError(
            f"'DIR' needs a folder that can be written to, found {str(directory)!r}: {error.strerror}. "
            "Choose another."
        ) from error


def _next_steps(name: str, directory: Path) -> tuple[str, ...]:
    place = shlex.quote(_place(directory))
    return f"pip install --editable {place}", f"tokendraw check {name} --quick", f"pytest {place}"


def _place(directory: Path) -> str:
    """Write the folder as a path for pip: a bare word would be the name of a distribution."""
    return str(directory) if str(directory).startswith(("/", ".")) else f"./{directory}"
