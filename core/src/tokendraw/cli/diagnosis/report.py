"""Writes a checkup as the JSON of ``tokendraw doctor --json``, or as tables."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

import tokendraw
from tokendraw.cli.candidates import print_candidates
from tokendraw.cli.describe import JsonObject, candidate_json, host_json
from tokendraw.cli.diagnosis.building import Build
from tokendraw.cli.diagnosis.checkup import MAIN_OPERATION, Checkup
from tokendraw.cli.diagnosis.libraries import Library
from tokendraw.cli.terminal.tables import print_table
from tokendraw.errors.formatting import all_of


def _python() -> str:
    return f"{platform.python_version()} ({platform.python_implementation()})"


def checkup_json(checkup: Checkup) -> JsonObject:
    """Return the checkup under the keys documented in :mod:`tokendraw.cli.verbs.doctor`."""
    return {
        "error": None if checkup.chosen else "A program gets no sampler here.",
        "tokendraw": tokendraw.__version__,
        "python": _python(),
        "platform": platform.platform(),
        "libraries": [{**asdict(library), "fits": library.fits} for library in checkup.libraries],
        "upstreams": [asdict(upstream) for upstream in checkup.upstreams],
        "engines": [asdict(engine) for engine in checkup.engines],
        "commands": [asdict(command) for command in checkup.commands],
        "host": host_json(checkup.host),
        "settings": {"variables": checkup.variables, "config": checkup.config},
        "candidates": [candidate_json(candidate) for candidate in checkup.candidates],
        "origins": [asdict(origin) for origin in checkup.origins],
        "chosen": checkup.chosen,
        "operations": dict(checkup.serving),
        "builds": None if checkup.builds is None else {n: _build_json(b) for n, b in checkup.builds.items()},
        "heavy_imports": {name: list(modules) for name, modules in checkup.heavy_imports.items()},
        "findings": [asdict(finding) for finding in checkup.findings],
    }


def _build_json(build: Build) -> JsonObject:
    return {
        "chosen": build.chosen,
        "companion": build.companion,
        "seconds": build.seconds,
        "error": build.error,
        "rejections": dict(build.rejections),
    }


def print_checkup(checkup: Checkup) -> None:
    """Print the checkup as tables, findings and a verdict."""
    facts = [
        ("tokendraw", tokendraw.__version__),
        ("python", _python()),
        ("platform", platform.platform()),
        ("device", str(checkup.host)),
        ("configuration", checkup.config or "no file"),
        *checkup.variables.items(),
    ]
    print_table(("", ""), facts)
    _heading("libraries")
    print_table(
        ("name", "installed", "needed"),
        [
            (name, installed or "no", _needed(requirements))
            for (name, installed), requirements in _by_library(checkup.libraries).items()
        ],
        indent=2,
    )
    if checkup.upstreams:
        _heading("upstreams")
        print_table(
            ("name", "installed", "needed", "tested", "what would change"),
            [
                (u.name, u.installed or "no", u.needed, ", ".join(u.tested), u.would_change)
                for u in checkup.upstreams
            ],
            indent=2,
        )
    if checkup.engines:
        _heading("engines")
        print_table(
            ("name", "installed", "tested", "applies", "what is replaced, or why nothing is"),
            [
                (e.engine, e.installed or "no", ", ".join(e.tested), "yes" if e.applies else "no", e.reason)
                for e in checkup.engines
            ],
            indent=2,
        )
    if any(command.is_foreign for command in checkup.commands):
        _heading("commands")
        print_table(
            ("name", "of", "why it cannot be used"),
            [(command.name, command.owner, command.reason or "") for command in checkup.commands],
            indent=2,
        )
    _heading("samplers")
    if checkup.candidates:
        print_candidates(checkup.candidates, indent=2)
    else:
        click.echo("  none")
    if set(checkup.serving) - {MAIN_OPERATION}:
        _heading("operations")
        rows = [
            (name, plugin or "no sampler", *_built(name, checkup.builds))
            for name, plugin in checkup.serving.items()
        ]
        header = ("name", "who would serve") if checkup.builds is None else ("name", "who serves", "building")
        print_table(header, rows, indent=2)
    _heading("origins")
    width = max(len(origin.name) for origin in checkup.origins)
    for origin in checkup.origins:
        click.echo(f"  {origin.name:{width}}  {origin.path or 'nowhere'}")  # on one line, to be copied
    _heading("findings")
    for number, finding in enumerate(checkup.findings, start=1):
        print_table(("", ""), [(f"{number}.", finding.problem)], indent=2)
        if finding.mend:
            click.echo(f"      {finding.mend}")
    if not checkup.findings:
        click.echo("  nothing is wrong")
    click.echo()
    click.echo(_verdict(checkup))


def _built(name: str, builds: Mapping[str, Build] | None) -> tuple[str, ...]:
    """Write the cell about building in the row of an operation; no cell with ``--no-build``."""
    if builds is None:
        return ()
    outcome = builds.get(name)
    if outcome is None:
        return ("nothing to build",)
    if outcome.chosen is None:
        return (str(outcome.error),)
    companion = f" with {outcome.companion}" if outcome.companion else ""
    return (f"built{companion} and proven in {outcome.seconds:.1f} s",)


def _verdict(checkup: Checkup) -> str:
    if checkup.chosen is None:
        return "A program gets no sampler here."
    if checkup.builds is None:
        return f"A program gets {checkup.chosen} here, if that can be built: --no-build leaves it untried."
    return f"A program gets {checkup.chosen} here."


def _heading(title: str) -> None:
    click.echo()
    click.echo(click.style(title, bold=True))


def _by_library(requirements: Sequence[Library]) -> dict[tuple[str, str | None], list[Library]]:
    by_library: dict[tuple[str, str | None], list[Library]] = {}
    for requirement in requirements:
        by_library.setdefault((requirement.name, requirement.installed), []).append(requirement)
    return by_library


def _needed(requirements: Sequence[Library]) -> str:
    """Join the requirements on a library: ``>=2.6 by a and b; >=2.7 by c``."""
    owners_of: dict[str, list[str]] = {}
    for requirement in requirements:
        if requirement.needed_by:
            owners_of.setdefault(requirement.needed or "any version", []).append(requirement.needed_by)
    return "; ".join(f"{needed} by {all_of(names)}" for needed, names in owners_of.items()) or "not required"
