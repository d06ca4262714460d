"""``tokendraw new NAME DIR``: a sampler plugin to start from, as a complete distribution.

JSON: ``name``, ``distribution``, ``package``, ``directory``, ``files`` (each with ``path``, below the directory, and
``holds``) and ``next`` (the commands that install and test it).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

import click
from packaging.utils import canonicalize_name

from tokendraw._discovery import settings as _settings
from tokendraw._discovery.entry_points import found
from tokendraw._exchange.plugin_info import NAME_RULE, is_name
from tokendraw._messages.errors import InvalidParameterError, TokendrawError
from tokendraw._messages.words import shown
from tokendraw._resolution.admission import FIRST_PARTY, claimants
from tokendraw.cli.app import GuardedCommand, warn
from tokendraw.cli.options import json_option
from tokendraw.cli.terminal.tables import print_json, print_table

_FILES = (
    ("pyproject.toml", "the distribution, its entry point and what it needs"),
    ("README.md", "what its users read"),
    (".gitignore", "what git leaves alone"),
    ("src/$package/__init__.py", "the plugin: what it can do, as data; imports no torch"),
    ("src/$package/sampler.py", "the sampler, in plain PyTorch"),
    ("tests/test_conformance.py", "tokendraw's conformance kit, as pytest tests"),
)
"""Files that are written, each with what it holds."""


@click.command(cls=GuardedCommand, short_help="Start a sampler plugin of your own.")
@click.argument("name")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def new(name: str, directory: Path, as_json: bool) -> None:
    """Write a complete sampler plugin, NAME-tokendraw, into the folder DIR.

    It passes the conformance kit as it is: a sampler in plain PyTorch, to be replaced piece by piece. NAME is what
    users will select. DIR has to be empty or not there yet; nothing is ever overwritten.
    """
    _check_name(name)
    distribution = f"{name}-tokendraw"
    settings = _settings.read_settings()
    warn(_already_installed(name, distribution), strict=settings.strict)
    words = {"name": name, "distribution": distribution, "package": distribution.replace("-", "_")}
    words["class_name"] = "".join(part.capitalize() for part in name.split("-"))
    written = {Template(path).substitute(words): holds for path, holds in _FILES}
    _write(directory, words)
    steps = _next_steps(name, directory)
    if as_json:
        print_json(
            {
                "name": name,
                "distribution": distribution,
                "package": words["package"],
                "directory": str(directory),
                "files": [{"path": path, "holds": holds} for path, holds in written.items()],
                "next": list(steps),
            }
        )
        return
    click.echo(f"{click.style(distribution, bold=True)} in {_place(directory)}")
    print_table(("", ""), list(written.items()), indent=2)
    click.echo("\nnext")
    for step in steps:
        click.echo(f"  {step}")


def _check_name(name: str) -> None:
    if not is_name(name):
        near = "-".join(re.findall("[a-z0-9]+", name.lower())).lstrip("0123456789-")
        raise InvalidParameterError(
            f"'NAME' needs {NAME_RULE}, found {shown(name)}. "
            f"Choose a name such as {near if is_name(near) else 'acme'}."
        )
    if name in FIRST_PARTY:
        raise InvalidParameterError(
            f"'NAME' needs a name of its own, found {name!r}, which is reserved for the distribution "
            f"{FIRST_PARTY[name]}. Choose another."
        )


def _already_installed(name: str, distribution: str) -> list[str]:
    """Warn if the plugin itself is installed; refuse a name that another distribution has."""
    claims = [candidate for candidate in found() if candidate.name == name and candidate.distribution]
    others = [c for c in claims if canonicalize_name(c.distribution) != distribution]
    if others:
        raise TokendrawError(
            f"'NAME' needs a name that no other distribution claims, found {name!r} in {claimants(others)}. "
            "Choose another, or uninstall that."
        )
    return [f"{claimants(claims)} is installed already; installing this one replaces it." for _ in claims[:1]]


def _write(directory: Path, words: Mapping[str, str]) -> None:
    """Write every file; the folder is empty or not there.

    :raises TokendrawError: it is neither, or cannot be written to.
    """
    template = files("tokendraw") / "_template"
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            holds = "one with files in it" if directory.is_dir() else "a file"
            raise TokendrawError(
                f"'DIR' needs a folder that is empty or not there, found {str(directory)!r}, {holds}. "
                "Choose another."
            )
        for path, _ in _FILES:
            target = directory / Template(path).substitute(words)
            source = template / f"{target.name.removeprefix('.')}.template"
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:  # x: whatever appeared meanwhile stays as it is
                file.write(Template(source.read_text(encoding="utf-8")).substitute(words))
    except OSError as error:
        raise TokendrawError(
            f"'DIR' needs a folder that can be written to, found {str(directory)!r}: {error.strerror}. "
            "Choose another."
        ) from error


def _next_steps(name: str, directory: Path) -> tuple[str, ...]:
    place = shlex.quote(_place(directory))
    return f"pip install --editable {place}", f"tokendraw check {name} --quick", f"pytest {place}"


def _place(directory: Path) -> str:
    """Write the folder as pip takes it: it would read a bare word as the name of a distribution."""
    return str(directory) if str(directory).startswith(("/", ".")) else f"./{directory}"
