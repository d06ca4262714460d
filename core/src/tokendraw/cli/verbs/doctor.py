"""``tokendraw doctor``: a checkup to paste into a bug report.

JSON: ``tokendraw``, ``python``, ``platform``, ``libraries`` (``name``, ``installed``, ``needed``,
``needed_by``, ``fits``; once for each that requires it), ``upstreams`` (``name``, ``plugin``,
``installed``, ``needed``, ``tested``, ``would_change``), ``engines`` (of each adapter to an inference engine:
``engine``, ``installed``, ``tested``, ``applies``, ``reason``), ``commands`` (that distributions bring: ``name``,
``distribution``, ``version``, ``entry_point``, ``reason``: null if it can be used), ``host``, ``settings``
(``variables`` by name, ``config``: the path of the file in force or null), ``candidates`` (as in ``list --json``),
``origins`` (of the core and its own plugins: ``name``, ``path``, ``beside_core``), ``chosen`` (null if no sampler is
usable), ``operations`` (by name who serves, or null), ``builds`` (null with ``--no-build``, else for each operation
that a plugin was chosen for: ``chosen``, ``companion``, ``partial_companion``, ``seconds``, ``error``, and
``rejections``, reasons by plugin),
``heavy_imports`` (names of modules by plugin) and ``findings`` (``problem``, ``mend``: a command or null).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from tokendraw.backends.description.host import Host
from tokendraw.backends.machine import detect
from tokendraw.cli import options
from tokendraw.cli.command import NOT_USABLE, GuardedCommand
from tokendraw.cli.describe import CANDIDATE_HEADER, JsonObject, candidate_rows
from tokendraw.cli.diagnosis.checkup import MAIN_OPERATION, examine
from tokendraw.cli.installed_commands import InstalledCommand
from tokendraw.cli.terminal.tables import print_heading, print_json, print_table
from tokendraw.cli.terminal.verbose import is_verbose
from tokendraw.errors.formatting import all_of


@click.command(cls=GuardedCommand, short_help="What is wrong here, and what mends it.")
@click.option(
    "--no-build", is_flag=True, help="Decide from what the plugins say of themselves, and build none."
)
@options.verbose_option
@options.json_option
@click.pass_context
def doctor(ctx: click.Context, no_build: bool, as_json: bool) -> None:
    """Check this installation: libraries, plugins, settings, faults, and the command that mends each fault.

    For each operation, the plugin that a program gets is built and makes the call that proves it. Exits with 1 if a
    program would get no sampler here. All that imports torch, a backend or an engine runs in processes of its own.
    """
    host = detect.detect_host()
    facts = examine(host, builds=not no_build, verbose=is_verbose(ctx))
    if as_json:
        print_json(facts)
    else:
        _print(host, facts)
    if facts["chosen"] is None:
        ctx.exit(NOT_USABLE)


def _print(host: Host, facts: JsonObject) -> None:
    """Print the facts as tables, findings and a verdict."""
    settings = {"device": str(host), "configuration": facts["settings"]["config"] or "no file"}
    top = {name: facts[name] for name in ("tokendraw", "python", "platform")}
    print_table(("", ""), list((top | settings | facts["settings"]["variables"]).items()))
    for title, header, rows in _sections(facts):
        if rows:
            print_heading(title)
            print_table(header, rows, indent=2)
    print_heading("origins")
    width = max(len(origin["name"]) for origin in facts["origins"])
    for origin in facts["origins"]:
        click.echo(f"  {origin['name']:{width}}  {origin['path'] or 'nowhere'}")  # on one line, to be copied
    print_heading("findings")
    for number, finding in enumerate(facts["findings"], start=1):
        print_table(("", ""), [(f"{number}.", finding["problem"])], indent=2)
        if finding["mend"]:
            click.echo(f"      {finding['mend']}")
    if not facts["findings"]:
        click.echo("  nothing is wrong")
    untried = facts["chosen"] and facts["builds"] is None
    untried_words = ", if that can be built: --no-build leaves it untried" if untried else ""
    click.echo(f"\nA program gets {facts['chosen'] or 'no sampler'} here{untried_words}.")


def _sections(facts: JsonObject) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """Yield title, header and rows of each table; a table without rows is left out."""
    yield "libraries", ("name", "installed", "needed"), _library_rows(facts["libraries"])
    header: tuple[str, ...] = ("name", "installed", "needed", "tested", "what would change")
    keys: tuple[str, ...] = ("name", "installed", "needed", "tested", "would_change")
    yield "upstreams", header, [[_cell(row[key]) for key in keys] for row in facts["upstreams"]]
    header = ("name", "installed", "tested", "applies", "what is replaced, or why nothing is")
    keys = ("engine", "installed", "tested", "applies", "reason")
    yield "engines", header, [[_cell(row[key]) for key in keys] for row in facts["engines"]]
    commands = [InstalledCommand(**command) for command in facts["commands"]]
    if any(command.is_foreign for command in commands):
        cells = [(command.name, command.owner, command.reason or "") for command in commands]
        yield "commands", ("name", "of", "why it cannot be used"), cells
    rows = candidate_rows(facts["candidates"])
    yield "samplers", CANDIDATE_HEADER if rows else ("",), rows or [("none",)]
    builds, serving = facts["builds"], facts["operations"]
    if set(serving) - {MAIN_OPERATION}:
        header = ("name", "who would serve") if builds is None else ("name", "who serves", "building")
        yield "operations", header, [(n, p or "no sampler", *_built(n, builds)) for n, p in serving.items()]


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else ", ".join(value)


def _built(name: str, builds: Mapping[str, JsonObject] | None) -> Iterator[str]:
    """Write the cell about building in the row of an operation; no cell with ``--no-build``."""
    if builds is None:
        return
    outcome = builds.get(name)
    if outcome is None:
        yield "nothing to build"
    elif outcome["chosen"] is None:
        yield str(outcome["error"])
    else:
        companions = [name for role in ("partial_companion", "companion") if (name := outcome[role])]
        beside = f" with {all_of(companions)}" if companions else ""
        yield f"built{beside} and proven in {outcome['seconds']:.1f} s"


def _library_rows(libraries: Sequence[JsonObject]) -> list[tuple[str, ...]]:
    """List each library once, with all requirements: ``>=2.6 by a and b; >=2.7 by c``."""
    owners_of: dict[tuple[str, str], dict[str, list[str]]] = {}
    for library in libraries:
        owners = owners_of.setdefault((library["name"], _cell(library["installed"])), {})
        if library["needed_by"]:
            owners.setdefault(library["needed"] or "any version", []).append(library["needed_by"])
    return [
        (*names, "; ".join(f"{n} by {all_of(by)}" for n, by in owners.items()) or "not required")
        for names, owners in owners_of.items()
    ]
