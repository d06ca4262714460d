"""``tokendraw new NAME DIR``: a plugin to start from, as a complete distribution.

JSON: ``name``, ``distribution``, ``package``, ``operations``, ``directory``, ``files`` (each with ``path``, below the
directory, and ``holds``) and ``next`` (the commands that install and test it).
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

from tokendraw import InvalidParameterError, TokendrawError
from tokendraw.commands import GuardedCommand, json_option, print_json, print_table, removed_option, warn
from tokendraw.resolution import read_settings
from tokendraw.tools import FIRST_PARTY, NAME_RULE, all_of, find_entry_points, format_value, is_name

_TEMPLATES = files("tokendraw_testing") / "_template"


_FILES = (
    ("pyproject.toml", "pyproject.toml", "the distribution, its entry point and what it needs"),
    ("README.md", "README.md", "what its users read"),
    ("gitignore", ".gitignore", "what git leaves alone"),
    ("__init__.py", "src/$package/__init__.py", "the plugin: what it can do, as data; imports no torch"),
    ("sampler.py", "src/$package/sampler.py", "the sampler, in plain PyTorch"),
    ("test_conformance.py", "tests/test_conformance.py", "tokendraw's conformance kit, as pytest tests"),
)
"""Template, path from the plugin's folder on, and what the file holds."""


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
    distribution, package = f"{name}-tokendraw", f"{name.replace('-', '_')}_tokendraw"
    settings = read_settings()
    warn(_already_installed(name, distribution), strict=settings.strict)
    class_name = "".join(part.capitalize() for part in name.split("-"))
    words = {"name": name, "distribution": distribution, "package": package, "class_name": class_name}
    holds = {Template(path).substitute(words): what for _, path, what in _FILES}
    templates = [(_TEMPLATES / f"{source}.template").read_text(encoding="utf-8") for source, _, _ in _FILES]
    texts = [Template(template).substitute(words) for template in templates]
    _write(directory, dict(zip(holds, texts, strict=True)))
    # A bare word would be the name of a distribution to pip.
    folder = str(directory) if str(directory).startswith(("/", ".")) else f"./{directory}"
    quoted = shlex.quote(folder)
    steps = [f"pip install --editable {quoted}", f"tokendraw check {name} --quick", f"pytest {quoted}"]
    if as_json:
        described = [{"path": path, "holds": what} for path, what in holds.items()]
        result = {"name": name, "distribution": distribution, "package": package, "operations": ["sample"]}
        print_json({**result, "directory": str(directory), "files": described, "next": steps})
        return
    click.echo(f"{click.style(distribution, bold=True)} in {folder}")
    print_table(("", ""), list(holds.items()), indent=2)
    click.echo("\n  ".join(["\nnext", *steps]))


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
    claims = [entry for entry in find_entry_points() if entry.name == name and entry.distribution]
    conflicts = [claim for claim in claims if canonicalize_name(claim.distribution) != distribution]
    owners = all_of(f"{claim.distribution} {claim.version}".rstrip() for claim in conflicts or claims)
    if conflicts:
        raise TokendrawError(
            f"'NAME' needs a name that no other distribution claims, found {name!r} in {owners}. "
            "Choose another, or uninstall that."
        )
    return [f"{owners} is installed already; installing this one replaces it."] if claims else []


def _write(directory: Path, texts: Mapping[str, str]) -> None:
    """Write every file to a folder that is empty or missing."""
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            holds = "one with files in it" if directory.is_dir() else "a file"
            raise TokendrawError(
                f"'DIR' needs a folder that is empty or not there, found {str(directory)!r}, {holds}. "
                "Choose another."
            )
        for path, text in texts.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:  # x: whatever appeared meanwhile stays as it is
                file.write(text)
    except OSError as error:
        raise TokendrawError(
            f"'DIR' needs a folder that can be written to, found {str(directory)!r}: {error.strerror}. "
            "Choose another."
        ) from error
