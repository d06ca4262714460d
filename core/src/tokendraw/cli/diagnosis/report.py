"""Writes a checkup as the JSON of ``tokendraw doctor --json``, or as tables."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

import tokendraw
from tokendraw.cli.describe import JsonObject, candidate_json, host_json, print_candidates
from tokendraw.cli.diagnosis.building import Build
from tokendraw.cli.diagnosis.checkup import MAIN_OPERATION, Checkup
from tokendraw.cli.diagnosis.libraries import Library
from tokendraw.cli.terminal.tables import print_heading, print_table
from tokendraw.errors.formatting import all_of

_BUILD_KEYS = ("chosen", "companion", "seconds", "error", "rejections")


def checkup_json(checkup: Checkup) -> JsonObject:
    """Return the checkup under the keys documented in :mod:`tokendraw.cli.verbs.doctor`."""
    builds = checkup.builds or {}
    builds_json = {name: {key: getattr(build, key) for key in _BUILD_KEYS} for name, build in builds.items()}
    return {
        "error": None if checkup.chosen else "A program gets no sampler here.",
        **_versions(),
        "libraries": [{**asdict(library), "fits": library.fits} for library in checkup.libraries],
        "upstreams": [asdict(upstream) for upstream in checkup.upstreams],
        "engines": [asdict(engine) for engine in checkup.engines],
        "commands": [asdict(command) for command in checkup.commands],
        "host": host_json(checkup.host),
        "settings": {"variables": checkup.variables, "config": checkup.config},
        "candidates": [candidate_json(candidate) for candidate in checkup.candidates],
        "origins": [asdict(origin) for origin in checkup.origins],
        "chosen": checkup.chosen,
        "operations": checkup.serving,
        "builds": None if checkup.builds is None else builds_json,
        "heavy_imports": checkup.heavy_imports,
        "findings": [asdict(finding) for finding in checkup.findings],
    }


def print_checkup(checkup: Checkup) -> None:
    """Print the checkup as tables, findings and a verdict."""
    settings = {
        "device": str(checkup.host),
        "configuration": checkup.config or "no file",
        **checkup.variables,
    }
    print_table(("", ""), list((_versions() | settings).items()))
    _section("libraries", ("name", "installed", "needed"), _library_rows(checkup.libraries))
    _section(
        "upstreams",
        ("name", "installed", "needed", "tested", "what would change"),
        [
            (u.name, u.installed or "no", u.needed, ", ".join(u.tested), u.would_change)
            for u in checkup.upstreams
        ],
    )
    _section(
        "engines",
        ("name", "installed", "tested", "applies", "what is replaced, or why nothing is"),
        [
            (e.engine, e.installed or "no", ", ".join(e.tested), "yes" if e.applies else "no", e.reason)
            for e in checkup.engines
        ],
    )
    if any(command.is_foreign for command in checkup.commands):
        rows = [(command.name, command.owner, command.reason or "") for command in checkup.commands]
        _section("commands", ("name", "of", "why it cannot be used"), rows)
    print_heading("samplers")
    if checkup.candidates:
        print_candidates(checkup.candidates, indent=2)
    else:
        click.echo("  none")
    if set(checkup.serving) - {MAIN_OPERATION}:
        header = ("name", "who would serve") if checkup.builds is None else ("name", "who serves", "building")
        serving = checkup.serving.items()
        served = [(name, plugin or "no sampler", *_built(name, checkup.builds)) for name, plugin in serving]
        _section("operations", header, served)
    print_heading("origins")
    width = max(len(origin.name) for origin in checkup.origins)
    for origin in checkup.origins:
        click.echo(f"  {origin.name:{width}}  {origin.path or 'nowhere'}")  # on one line, to be copied
    print_heading("findings")
    for number, finding in enumerate(checkup.findings, start=1):
        print_table(("", ""), [(f"{number}.", finding.problem)], indent=2)
        if finding.mend:
            click.echo(f"      {finding.mend}")
    if not checkup.findings:
        click.echo("  nothing is wrong")
    untried = checkup.chosen and checkup.builds is None
    untried_words = ", if that can be built: --no-build leaves it untried" if untried else ""
    click.echo(f"\nA program gets {checkup.chosen or 'no sampler'} here{untried_words}.")


def _versions() -> dict[str, str]:
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    return {"tokendraw": tokendraw.__version__, "python": python, "platform": platform.platform()}


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table under a heading; nothing without rows."""
    if rows:
        print_heading(title)
        print_table(header, rows, indent=2)


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


def _library_rows(requirements: Sequence[Library]) -> list[tuple[str, ...]]:
    """List each library once, with all requirements: ``>=2.6 by a and b; >=2.7 by c``."""
    owners_of: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for library in requirements:
        owners = owners_of.setdefault((library.name, library.installed or "no"), {})
        if library.needed_by:
            owners.setdefault(library.needed or "any version", []).append(library.needed_by)
    return [
        (
            *library,
            "; ".join(f"{needed} by {all_of(names)}" for needed, names in owners.items()) or "not required",
        )
        for library, owners in owners_of.items()
    ]
