"""``tokendraw doctor``: a checkup to paste into a bug report.

JSON: ``tokendraw``, ``python``, ``platform``, ``libraries`` (``name``, ``installed``, ``needed``,
``needed_by``, ``fits``; once for each that requires it), ``upstreams`` (``name``, ``plugin``,
``installed``, ``needed``, ``tested``, ``would_change``), ``engines`` (of each adapter to an inference engine:
``engine``, ``installed``, ``tested``, ``applies``, ``reason``), ``commands`` (that distributions bring: ``name``,
``distribution``, ``version``, ``entry_point``, ``reason``: null if it can be used), ``host``, ``settings``
(``variables`` by name, ``config``: the path of the file in force or null), ``candidates`` (as in ``list --json``),
``origins`` (of the core and its own plugins: ``name``, ``path``, ``beside_core``), ``chosen`` (null if no sampler is
usable), ``operations`` (by name who serves, or null), ``builds`` (null with ``--no-build``, else for each operation
that a plugin was chosen for: ``chosen``, ``companion``, ``seconds``, ``error``, and ``rejections``, reasons by plugin),
``heavy_imports`` (names of modules by plugin) and ``findings`` (``problem``, ``mend``: a command or null).
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec

import click

import tokendraw
from tokendraw import operations
from tokendraw.backends.description.host import Host
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.machine import detect
from tokendraw.backends.resolution.advice import using
from tokendraw.backends.resolution.candidate import Candidate, Choice, State
from tokendraw.cli.command import NOT_USABLE, GuardedCommand
from tokendraw.cli.describe import JsonObject, candidate_json, described, host_json
from tokendraw.cli.diagnosis.building import Build, build
from tokendraw.cli.diagnosis.engines import engines
from tokendraw.cli.diagnosis.findings import Finding, findings
from tokendraw.cli.diagnosis.libraries import Library, libraries
from tokendraw.cli.diagnosis.origins import Origin, origins
from tokendraw.cli.diagnosis.slow_starts import heavy_imports_of
from tokendraw.cli.diagnosis.upstreams import UpstreamState, upstreams
from tokendraw.cli.installed_commands import InstalledCommand, examined_commands
from tokendraw.cli.options import json_option, verbose_option
from tokendraw.cli.terminal.tables import plugins_at_work, print_json, print_table, progress_bar
from tokendraw.cli.terminal.verbose import is_verbose
from tokendraw.cli.verbs.list import by_rank, print_candidates
from tokendraw.engines import EngineState
from tokendraw.errors.exceptions import TokendrawError, TokendrawWarning
from tokendraw.errors.formatting import all_of, printable
from tokendraw.errors.notices import as_error
from tokendraw.providers import resolve as _resolve

_MAIN = "sample"
"""The operation that the last line, and the exit code, are about."""


@dataclass(frozen=True)
class _Checkup:
    host: Host
    variables: dict[str, str]
    config: str | None
    candidates: Sequence[Candidate]
    libraries: Sequence[Library]
    upstreams: Sequence[UpstreamState]
    engines: Sequence[EngineState]
    commands: Sequence[InstalledCommand]
    origins: Sequence[Origin]
    chosen: str | None
    serving: Mapping[str, str | None]
    """Name of the plugin that serves each operation that any plugin offers; None: none can."""
    builds: Mapping[str, Build] | None
    """Outcome of building for each operation that a plugin was chosen for; None: nothing was built."""
    heavy_imports: Mapping[str, tuple[str, ...]]
    findings: Sequence[Finding]


@click.command(cls=GuardedCommand, short_help="What is wrong here, and what mends it.")
@click.option(
    "--no-build",
    is_flag=True,
    help="Decide from what the plugins say of themselves, and build none.",
)
@verbose_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, no_build: bool, as_json: bool) -> None:
    """Check this installation: what is here, what is wrong, and the command that mends it.

    For each operation, the plugin that a program gets is built and makes the call that proves it. Exits with 1 if a
    program would get no sampler here. All that imports torch, a backend or an engine runs in processes of its own.
    """
    checkup = _examine(builds=not no_build, verbose=is_verbose(ctx))
    if as_json:
        print_json(_as_json(checkup))
    else:
        _print(checkup)
    if checkup.chosen is None:
        ctx.exit(NOT_USABLE)


def _examine(*, builds: bool, verbose: bool) -> _Checkup:
    messages: list[str] = []
    candidates: list[Candidate] = []
    config = chosen = None
    choice = Choice()
    assessed: dict[str, tuple[Candidate, ...]] = {}
    serving: dict[str, str | None] = {}
    untested: tuple[str, ...] = ()
    with plugins_at_work(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # they are among the findings
        try:
            settings = _settings.read_settings()
            config = printable(str(settings.config)) if settings.config else None
            choice = settings.choice()
            assessed = _resolve.discover_all()
            candidates = by_rank(assessed[_MAIN])
            serving = {
                name: _who_serves(name, found, choice)
                for name, found in assessed.items()
                if _is_offered(name, candidates)
            }
            misnamed = settings.all_warnings(c.name for c in candidates)
            messages += [as_error(text) for text in misnamed] if settings.strict else misnamed
            resolution = tokendraw.resolve()
            if settings.strict and (misnamed or resolution.warnings):
                outcome = using(resolution.chosen)
                messages += [as_error(text, outcome) for text in resolution.warnings]
            else:
                chosen, untested = resolution.chosen, resolution.untested
        except (TokendrawError, TokendrawWarning) as error:
            messages += [str(error)] if str(error) not in messages else []
    names = [name for name, who in serving.items() if who] if builds else []
    trouble, outcomes = _build(names, verbose=verbose)
    if trouble is not None:
        messages.append(trouble)
        chosen, serving = None, dict.fromkeys(serving)
    if (main := outcomes.get(_MAIN)) is not None and chosen is not None:
        chosen, untested = main.chosen, main.warnings
        messages += [main.error] if main.error and main.culprit is None else []
    messages += untested
    serving |= {name: outcome.chosen for name, outcome in outcomes.items()}
    around, places, host = libraries(candidates), origins(candidates), detect.detect_host()
    heavy, commands = heavy_imports_of(candidates), examined_commands()
    return _Checkup(
        host=host,
        variables={
            printable(name): printable(text)
            for name, text in sorted(os.environ.items())
            if name.startswith("TOKENDRAW_")
        },
        config=config,
        candidates=by_rank(_as_built(candidate, outcomes.get(_MAIN)) for candidate in candidates),
        libraries=around,
        upstreams=upstreams(candidates, assessed, host, choice),
        engines=engines(),
        commands=commands,
        origins=places,
        chosen=chosen,
        serving=serving,
        builds=outcomes if builds else None,
        heavy_imports=heavy,
        findings=findings(messages, around, candidates, places, outcomes, heavy, choice, commands),
    )


def _build(names: Sequence[str], *, verbose: bool) -> tuple[str | None, dict[str, Build]]:
    """Build for each of the operations. Without operations, import torch alone, unless this process has torch."""
    if not names and (hasattr(sys.modules.get("torch"), "Tensor") or find_spec("torch") is None):
        return None, {}
    with progress_bar(len(names), "operations") as tell:
        return build(names, tell, verbose=verbose)


def _as_built(candidate: Candidate, outcome: Build | None) -> Candidate:
    """Mark an available candidate as unavailable if building failed."""
    reason = outcome.rejections.get(candidate.name) if outcome else None
    if reason is None or candidate.state is not State.AVAILABLE:
        return candidate
    return replace(candidate, state=State.UNAVAILABLE, reason=reason, rejection=reason)


def _who_serves(operation: str, candidates: Iterable[Candidate], choice: Choice) -> str | None:
    need = operations.get(operation).need()
    try:
        return _resolve.decide(candidates, detect.detect_host(), need, choice, operation=operation).chosen
    except TokendrawError:
        return None


def _is_offered(operation: str, candidates: Iterable[Candidate]) -> bool:
    infos = map(described, candidates)
    return any(info is not None and operation in info.operations for info in infos)


def _python() -> str:
    return f"{platform.python_version()} ({platform.python_implementation()})"


def _as_json(checkup: _Checkup) -> JsonObject:
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


def _print(checkup: _Checkup) -> None:
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
    if set(checkup.serving) - {_MAIN}:
        _heading("operations")
        rows = [
            (name, who or "no sampler", *_tried(name, checkup.builds))
            for name, who in checkup.serving.items()
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


def _tried(name: str, builds: Mapping[str, Build] | None) -> tuple[str, ...]:
    """Write the cell about building in an operation's row; no cell with ``--no-build``."""
    if builds is None:
        return ()
    outcome = builds.get(name)
    if outcome is None:
        return ("nothing to build",)
    if outcome.chosen is None:
        return (str(outcome.error),)
    companion = f" with {outcome.companion}" if outcome.companion else ""
    return (f"built{companion} and proven in {outcome.seconds:.1f} s",)


def _verdict(checkup: _Checkup) -> str:
    if checkup.chosen is None:
        return "A program gets no sampler here."
    if checkup.builds is None:
        return f"A program gets {checkup.chosen} here, if that can be built: --no-build leaves it untried."
    return f"A program gets {checkup.chosen} here."


def _heading(title: str) -> None:
    click.echo()
    click.echo(click.style(title, bold=True))


def _by_library(requirements: Sequence[Library]) -> dict[tuple[str, str | None], list[Library]]:
    found: dict[tuple[str, str | None], list[Library]] = {}
    for requirement in requirements:
        found.setdefault((requirement.name, requirement.installed), []).append(requirement)
    return found


def _needed(requirements: Sequence[Library]) -> str:
    """Say who needs which versions of one library: ``>=2.6 by a and b; >=2.7 by c``."""
    askers: dict[str, list[str]] = {}
    for requirement in requirements:
        if requirement.needed_by:
            askers.setdefault(requirement.needed or "any version", []).append(requirement.needed_by)
    return "; ".join(f"{needed} by {all_of(names)}" for needed, names in askers.items()) or "not required"
