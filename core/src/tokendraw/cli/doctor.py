"""``tokendraw doctor``: a checkup to paste into a bug report.

JSON: ``tokendraw``, ``python``, ``platform``, ``libraries`` (``name``, ``installed``; ``needed``,
``needed_by`` and ``fits`` are "", "" and true: `pip check` reads requirements), ``upstreams`` (``name``, ``plugin``,
``installed``, ``needed``, ``tested``, ``would_change``), ``engines`` (of each adapter to an inference engine:
``engine``, ``installed``, ``tested``, ``applies``, ``reason``), ``commands`` (that distributions bring: ``name``,
``distribution``, ``version``, ``entry_point``, ``reason``: null if it can be used), ``host``, ``settings``
(``variables`` by name, ``config``: the path of the file in force or null), ``candidates`` (as in ``list --json``),
``chosen`` (null if no sampler is usable), ``operations`` (by name who serves, or null), ``builds`` (null with
``--no-build``, else for each operation that a plugin was chosen for: ``chosen``, ``companion``, ``partial_companion``,
``seconds``, ``error``, and ``rejections``, reasons by plugin), ``origins`` and ``heavy_imports`` (empty: no longer
looked for) and ``findings`` (``problem``, ``mend``: a command or null).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import click
import importlib_metadata

import tokendraw
from tokendraw import operations, providers
from tokendraw._torch.importing import damage, require_torch
from tokendraw.backends import machine
from tokendraw.backends.description import API_VERSION, Host
from tokendraw.backends.discovery.entry_points import declarations, installed_version
from tokendraw.backends.discovery.guard import TIMEOUT_SECONDS, call_in_new_process, guarded
from tokendraw.backends.discovery.settings import read_settings
from tokendraw.backends.resolution import upstream as _upstream
from tokendraw.backends.resolution.candidate import FIRST_PARTY, Candidate, Choice, State, conflicts
from tokendraw.backends.resolution.decide import disable_setting, using
from tokendraw.cli import options, terminal
from tokendraw.cli.app import InstalledCommand, examined, installed_commands
from tokendraw.cli.negotiation import JsonObject, candidate_json, described, host_json, print_candidates, rank
from tokendraw.cli.terminal import NOT_USABLE, GuardedCommand, plugins_at_work, print_heading, print_table
from tokendraw.engines import ENTRY_POINT_GROUP, EngineState
from tokendraw.errors import (
    NATIVE,
    PluginError,
    SamplerUnavailableError,
    TokendrawError,
    TokendrawWarning,
    all_of,
    as_error,
    format_line,
    format_value,
    pip_install,
    printable,
    where,
)

BUILD_SECONDS = 900
"""Time limit of a process that builds: FlashInfer takes up to five minutes to compile."""

_MAIN = "sample"  # the operation that the verdict, and the exit code, are about
_LIBRARIES = ("torch", "triton", "numpy", "safetensors")
_COMMAND_KEYS = ("name", "distribution", "version", "entry_point", "reason")
_NOT_BUILT: Mapping[str, Any] = {
    "chosen": None,
    "companion": None,
    "partial_companion": None,
    "seconds": 0.0,
    "error": None,
    "rejections": {},
}


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
    host = machine.detect_host()
    report = _describe(_examine(host, builds=not no_build, verbose=terminal.is_verbose(ctx)))
    if as_json:
        terminal.print_json(report)
    else:
        _print(host, report)
    if report["chosen"] is None:
        ctx.exit(NOT_USABLE)


@dataclass
class _Checkup:
    """Discovery, resolution and builds as in a program; after an error some fields keep their defaults."""

    host: Host
    config: str | None = None
    choice: Choice = field(default_factory=Choice)
    candidates: Sequence[Candidate] = ()
    chosen: str | None = None
    serving: dict[str, str | None] = field(default_factory=dict)
    """Plugin by offered operation; None: no plugin can serve it."""
    messages: list[str] = field(default_factory=list)
    untested: Sequence[str] = ()
    builds: dict[str, JsonObject] | None = None
    """Outcome by operation, as of :func:`build`; None: nothing was to be built."""


def _examine(host: Host, *, builds: bool, verbose: bool) -> _Checkup:
    """Decide as in a program, then build the chosen plugins."""
    found = _Checkup(host)
    with plugins_at_work(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # the findings repeat the warnings
        try:
            _negotiate(found)
        except (TokendrawError, TokendrawWarning) as error:
            found.messages += [str(error)] if str(error) not in found.messages else []
    names = [name for name, plugin in found.serving.items() if plugin and builds]
    has_torch = hasattr(sys.modules.get("torch"), "Tensor")
    torch_error: str | None = None
    outcomes: dict[str, JsonObject] = {}
    if names or not (has_torch or importlib.util.find_spec("torch") is None):  # without names torch alone
        with terminal.progress(f"building what serves {all_of(names)}" if names else "importing torch"):
            torch_error, outcomes = build(names, verbose=verbose)
    if torch_error is not None:
        found.serving = dict.fromkeys(found.serving)
        found.messages.append(torch_error)
    main = outcomes.get(_MAIN)
    if main is None or found.chosen is None:
        found.messages += found.untested
    else:
        found.chosen = main["chosen"]
        is_told = main["culprit"] or torch_error
        found.messages += [*([main["error"]] if main["error"] and not is_told else []), *main["warnings"]]
    found.chosen = None if torch_error else found.chosen
    found.builds = outcomes if builds else None
    return found


def _negotiate(found: _Checkup) -> None:
    settings = read_settings()
    found.config = printable(str(settings.config)) if settings.config else None
    found.choice = settings.choice()
    by_operation = providers.discover_all()
    found.candidates = sorted(by_operation[_MAIN], key=rank)
    infos = [info for candidate in found.candidates if (info := described(candidate))]
    for name, candidates in by_operation.items():
        if any(name in info.operations for info in infos):
            about = operations.find_operation(name)
            choice = settings.choice(binds=operations.is_own(about))
            found.serving[name] = None
            with contextlib.suppress(TokendrawError):
                decision = providers.decide(candidates, found.host, about.need(), choice, operation=name)
                found.serving[name] = decision.chosen
    misnamed = settings.all_warnings(candidate.name for candidate in found.candidates)
    found.messages += [as_error(text) for text in misnamed] if settings.strict else misnamed
    resolution = tokendraw.resolve()
    if settings.strict and (misnamed or resolution.warnings):
        outcome = using(resolution.chosen)
        found.messages += [as_error(text, outcome) for text in resolution.warnings]
    else:
        found.chosen, found.untested = resolution.chosen, resolution.untested
    if all(candidate.name != "native" for candidate in found.candidates):  # which serves everything
        missing = list(resolution.beyond if resolution.companion is None else ())
        unserved = [name for name in operations.RECORDS if not found.serving.get(name)]
        missing += [f"the operation {name!r}" for name in unserved]
        if missing:
            found.messages.append(f"No installed plugin serves {all_of(missing)}; run {NATIVE}.")


def _describe(found: _Checkup) -> JsonObject:
    builds = found.builds or {}
    failed = builds[_MAIN]["rejections"] if _MAIN in builds else {}
    shown = [
        replace(c, state=State.UNAVAILABLE, reason=failed[c.name])
        if c.name in failed and c.state is State.AVAILABLE
        else c
        for c in found.candidates
    ]
    commands = [examined(command) for command in installed_commands()]
    variables = {name: text for name, text in sorted(os.environ.items()) if name.startswith("TOKENDRAW_")}
    report: JsonObject = {
        "error": None if found.chosen else "A program gets no sampler here.",
        "tokendraw": tokendraw.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "libraries": [
            {"name": name, "installed": installed_version(name), "needed": "", "needed_by": "", "fits": True}
            for name in _LIBRARIES
        ],
        "upstreams": [
            {
                "name": upstream.distribution,
                "plugin": candidate.name,
                "installed": candidate.upstream_version,
                "needed": upstream.versions,
                "tested": upstream.tested,
                "would_change": _upstream.would_change(upstream, candidate.upstream_version),
            }
            for candidate in found.candidates
            if (info := described(candidate)) and (upstream := info.upstream)
        ],
        "engines": engines(),
        "commands": [{key: getattr(command, key) for key in _COMMAND_KEYS} for command in commands],
        "host": host_json(found.host),
        "settings": {
            "variables": {printable(name): printable(text) for name, text in variables.items()},
            "config": found.config,
        },
        "candidates": [candidate_json(candidate) for candidate in sorted(shown, key=rank)],
        "origins": [],
        "chosen": found.chosen,
        "operations": found.serving | {name: outcome["chosen"] for name, outcome in builds.items()},
        "builds": found.builds and {n: {key: o[key] for key in _NOT_BUILT} for n, o in builds.items()},
        "heavy_imports": {},
    }
    findings = [{"problem": problem, "mend": command} for problem, command in _faults(found, commands)]
    return report | {"findings": findings}


# Work in new processes, which a plugin, an engine or torch may end, block or litter.


def build(names: Sequence[str], *, verbose: bool = False) -> tuple[str | None, dict[str, JsonObject]]:
    """Import torch and load each operation as a program does.

    After an operation that ended the process, a new one goes on with the next.

    :returns: the reason why torch cannot be imported, or None; then by operation the fields of ``builds``, the
        ``warnings`` of the decision and ``culprit``, the plugin that ended the process or hung.
    """
    outcomes: dict[str, JsonObject] = {}
    while True:
        remaining = [name for name in names if name not in outcomes]
        state, status = call_in_new_process(
            f"{__name__}:report_builds", *remaining, timeout_seconds=BUILD_SECONDS, verbose=verbose
        )
        if state is None:
            ending = f"ending the process: exit status {status}"
            if status is None:
                ending = f"still importing after {BUILD_SECONDS} s"
            return damage("A sampler", ending), outcomes
        outcomes |= state["builds"]
        if state["torch"] or len(outcomes) == len(names):
            return state["torch"], outcomes
        if state["operation"] not in outcomes:
            plugin, ending = state["plugin"], f"ended the process: exit status {status}"
            if status is None:
                ending = f"was not done after {BUILD_SECONDS} s"
            subject = "finding the plugins" if plugin is None else f"building {plugin!r}"
            outcomes[state["operation"]] = {
                **_NOT_BUILT,
                "error": f"{subject} {ending}",
                "rejections": {} if plugin is None else {plugin: f"building it {ending}"},
                "warnings": [],
                "culprit": plugin,
            }


def report_builds(*names: str) -> None:
    """Import torch, load each of the operations, and end the process: the work of the new process.

    Each line is the whole state as JSON: ``torch`` (null, or the reason why it cannot be imported), ``builds`` by
    operation, ``operation`` (at work) and ``plugin``, the name of one before it is built.
    """
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what plugins print is no line
    state: JsonObject = {"torch": None, "builds": {}, "operation": next(iter(names), None), "plugin": None}

    def write(**changes: Any) -> None:
        state.update(changes)
        print(json.dumps(state), file=lines, flush=True)

    try:
        require_torch()
    except SamplerUnavailableError as error:
        write(torch=str(error))
        return
    write()
    from tokendraw.calls.negotiator import warn_of
    from tokendraw.providers import open_negotiator

    log = terminal.StderrHandler()
    warnings.simplefilter("ignore", TokendrawWarning)  # a strict one is raised all the same
    for name in names:
        write(operation=name, plugin=None)
        operation, settings, start = operations.find_operation(name), read_settings(), time.monotonic()
        choice = settings.choice(binds=operations.is_own(operation))
        decisions: Sequence[Any] = ()
        built: set[str] = set()
        outcome: JsonObject = {**_NOT_BUILT, "warnings": [], "culprit": None}

        def note(plugin: str, built: set[str] = built) -> None:
            built.add(plugin)
            write(plugin=plugin)

        try:
            need = operation.need()
            negotiator, discovery = open_negotiator(settings, choice, None, need, before_build=note)
            with terminal.logged_by(log):  # failures to load a plugin are the command's own to show
                selection, _ = negotiator.settle(operation, negotiator.rejections, discovery)
            resolution = selection.resolution
            decisions, outcome["warnings"] = resolution.decisions, resolution.untested
            warn_of(resolution, strict=settings.strict)
            for role in ("chosen", "companion", "partial_companion"):
                outcome[role] = getattr(resolution, role)
        except (TokendrawError, TokendrawWarning) as refusal:
            outcome["error"] = str(refusal)
            decisions = decisions or getattr(refusal, "decisions", ())
        outcome["seconds"] = time.monotonic() - start
        outcome["rejections"] = {d.name: d.reason for d in decisions if not d.accepted and d.name in built}
        write(builds={**state["builds"], name: outcome})
    sys.stderr.flush()
    os._exit(0)  # no thread or handler of a plugin holds up the end


def engines() -> list[JsonObject]:
    states = []
    for name, value in sorted({(each.name, each.entry_point) for each in declarations(ENTRY_POINT_GROUP)}):
        state, status = call_in_new_process(f"{__name__}:report_engine", name, value)
        if status is None:
            state = f"asking {value!r} took more than {TIMEOUT_SECONDS} s"
        elif not isinstance(state, (dict, str)):
            state = f"asking {value!r} ended the process: exit status {status}"
        if isinstance(state, str):
            reason = format_line(state)
            state = asdict(
                EngineState(engine=printable(name), installed=None, tested=(), applies=False, reason=reason)
            )
        states.append(state)
    return states


def report_engine(name: str, value: str) -> None:
    """Print as a line of JSON what an adapter's entry point returns, or why it cannot be asked, in the new process."""

    def ask() -> EngineState:
        state = importlib_metadata.EntryPoint(name, value, ENTRY_POINT_GROUP).load()()
        if not isinstance(state, EngineState):
            raise PluginError(f"{value!r} needs to return an EngineState, found {type(state).__name__}")
        return state

    answer: JsonObject | str
    with plugins_at_work():
        try:
            answer = asdict(guarded(f"asking {value!r}", ask))
        except PluginError as error:
            answer = str(error)
    print(json.dumps(answer), flush=True)
    os._exit(0)  # no thread or handler of an engine holds up the end, or prints another line


# Findings: each a problem, and the command that mends it if there is one. A plugin for other machines is none.

_Findings: TypeAlias = Iterator[tuple[str, str | None]]


def _faults(found: _Checkup, commands: Iterable[InstalledCommand]) -> _Findings:
    candidates, choice = found.candidates, found.choice
    for message in found.messages:
        yield message, None
    for candidate in candidates:
        if remedy := _remedy(candidate, candidates, choice):
            command, advice = remedy
            reason = (candidate.reason or "").removesuffix(f"; run `{command}`")
            yield f"'{candidate.name}' is {candidate.state}: {reason}. {advice}".rstrip(), command
    for candidate in candidates:
        yield from _of_builds(candidate, found.builds or {}, choice)
    for each in commands:
        if each.reason is not None:
            yield f"The command {each.name!r} of {each.owner} cannot be used: {each.reason}.", None


def _of_builds(candidate: Candidate, builds: Mapping[str, JsonObject], choice: Choice) -> _Findings:
    names_of: dict[tuple[str, bool], list[str]] = {}
    for operation, outcome in builds.items():
        if candidate.info is not None and (reason := outcome["rejections"].get(candidate.name)):
            names_of.setdefault((reason, outcome["culprit"] == candidate.name), []).append(operation)
    for (reason, has_ended), names in names_of.items():
        author = "tokendraw's maintainers" if candidate.name in FIRST_PARTY else "its author"
        advice = _install(reason) or f"Mend that, or report it to {author}."
        if has_ended:
            advice = "No other sampler takes over from it."
        problem = f"'{candidate.name}' cannot be built for {all_of(names)}: {reason}. {advice}"
        yield problem, _switch_off(candidate, choice)


def _remedy(candidate: Candidate, candidates: Sequence[Candidate], choice: Choice) -> tuple[str, str] | None:
    """Find the command that repairs or removes a plugin, and the advice in front of it; None if nothing is wrong."""
    name, state, info = candidate.name, candidate.state, candidate.info
    if state is State.UNAVAILABLE and info is not None and info.upstream is not None:
        wanted = info.upstream, candidate.upstream_version
        for operation in info.operations:
            if candidate.reason == _upstream.reason_against(*wanted, operation):
                return f"pip install '{_upstream.requirement(*wanted, operation)}'", ""
    if state not in (State.BROKEN, State.INCOMPATIBLE):
        return None
    if state is State.INCOMPATIBLE and info is not None and info.api_version > API_VERSION:
        return _upgrade("tokendraw"), ""
    if state is State.BROKEN:
        if name in FIRST_PARTY and not candidate.first_party:
            return f"pip uninstall {candidate.distribution}", ""
        claimants = conflicts(candidates).get(name, ())
        if candidate in claimants:
            names = [claimant.distribution for claimant in claimants]
            first, *others = (f"pip uninstall {' '.join(n for n in names if n != kept)}" for kept in names)
            return (f"{first} (or {', or '.join(others)})", "") if candidate is claimants[0] else None
    switch_off = _switch_off(candidate, choice)
    if advice := _install(str(candidate.reason)):
        return switch_off, advice
    try:
        origin = importlib_metadata.distribution(candidate.distribution).origin
        folder = None if origin is None else str(origin.url).removeprefix("file://")
    except Exception:  # absent or damaged: which one depends on the damage and on the libraries' versions
        folder = None
    if folder is not None and not candidate.first_party:  # an index does not have it
        return switch_off, f"It was installed from {format_value(folder)}: mend it there."
    upgrade = _upgrade(candidate.distribution)
    return (f"{upgrade} (or switch it off: {switch_off})" if state is State.BROKEN else upgrade), ""


def _install(reason: str) -> str:
    match = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", reason)
    return f"Install what has the module {match[1]!r}." if match else ""


def _switch_off(candidate: Candidate, choice: Choice) -> str:
    return f"export {disable_setting([candidate.name], choice)}"


def _upgrade(distribution: str) -> str:
    place = where(distribution).strip()
    return pip_install(distribution, options="--upgrade") + (f" ({place})" if place else "")


def _print(host: Host, report: JsonObject) -> None:
    settings = {"device": str(host), "configuration": report["settings"]["config"] or "no file"}
    top = {name: report[name] for name in ("tokendraw", "python", "platform")}
    print_table(("", ""), list((top | settings | report["settings"]["variables"]).items()))

    def section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if rows:
            print_heading(title)
            print_table(header, rows, indent=2)

    def cells(name: str, *keys: str) -> list[list[str]]:
        return [[_cell(row[key]) for key in keys] for row in report[name]]

    section("libraries", ("name", "installed"), cells("libraries", "name", "installed"))
    header: tuple[str, ...] = ("name", "installed", "needed", "tested", "what would change")
    section("upstreams", header, cells("upstreams", "name", "installed", "needed", "tested", "would_change"))
    header = ("name", "installed", "tested", "applies", "what is replaced, or why nothing is")
    section("engines", header, cells("engines", "engine", "installed", "tested", "applies", "reason"))
    commands = [InstalledCommand(state=State.FOUND, **command) for command in report["commands"]]
    if any(command.is_foreign for command in commands):
        owners = [(command.name, command.owner, command.reason or "") for command in commands]
        section("commands", ("name", "of", "why it cannot be used"), owners)
    print_heading("samplers")
    print_candidates(report["candidates"], indent=2)
    builds, serving = report["builds"], report["operations"]
    if set(serving) - {_MAIN}:
        header = ("name", "who would serve") if builds is None else ("name", "who serves", "building")
        rows = [(name, plugin or "no sampler", *_built(name, builds)) for name, plugin in serving.items()]
        section("operations", header, rows)
    print_heading("findings")
    for number, finding in enumerate(report["findings"], start=1):
        print_table(("", ""), [(f"{number}.", finding["problem"])], indent=2)
        if finding["mend"]:
            click.echo(f"      {finding['mend']}")
    if not report["findings"]:
        click.echo("  nothing is wrong")
    untried = report["chosen"] and report["builds"] is None
    untried_words = ", if that can be built: --no-build leaves it untried" if untried else ""
    click.echo(f"\nA program gets {report['chosen'] or 'no sampler'} here{untried_words}.")


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else ", ".join(value)


def _built(name: str, builds: Mapping[str, JsonObject] | None) -> tuple[str, ...]:
    """Write the cell about building in the row of an operation; no cell with ``--no-build``."""
    if builds is None:
        return ()
    if (outcome := builds.get(name)) is None:
        return ("nothing to build",)
    if outcome["chosen"] is None:
        return (str(outcome["error"]),)
    companions = [name for role in ("partial_companion", "companion") if (name := outcome[role])]
    beside = f" with {all_of(companions)}" if companions else ""
    return (f"built{beside} and proven in {outcome['seconds']:.1f} s",)
