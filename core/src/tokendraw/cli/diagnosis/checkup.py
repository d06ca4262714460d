"""Collects the checkup of ``tokendraw doctor`` as data: facts about the installation, and faults."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec

import tokendraw
from tokendraw import operations
from tokendraw.backends.description.host import Host
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.discovery.entry_points import find_entry_points
from tokendraw.backends.discovery.heavy_imports import fatal_import, heavy_imports
from tokendraw.backends.resolution.admission import admit
from tokendraw.backends.resolution.advice import using
from tokendraw.backends.resolution.candidate import Candidate, Choice, Resolution, State
from tokendraw.cli.describe import JsonObject, candidate_json, described, host_json, rank
from tokendraw.cli.diagnosis.building import Build, build
from tokendraw.cli.diagnosis.engines import engines
from tokendraw.cli.diagnosis.findings import findings
from tokendraw.cli.diagnosis.libraries import libraries, upstreams
from tokendraw.cli.diagnosis.origins import origins
from tokendraw.cli.installed_commands import examined, installed_commands
from tokendraw.cli.terminal.tables import plugins_at_work, progress
from tokendraw.errors.exceptions import TokendrawError, TokendrawWarning
from tokendraw.errors.formatting import all_of, printable
from tokendraw.errors.install_commands import NATIVE
from tokendraw.errors.notices import as_error
from tokendraw.providers import resolve as _resolve

MAIN_OPERATION = "sample"
"""The operation that the verdict, and the exit code, are about."""
_BUILD_KEYS = ("chosen", "companion", "partial_companion", "seconds", "error", "rejections")


@dataclass
class _Negotiation:
    """Discovery and resolution as in a program; after an error some facts keep their defaults.

    :ivar serving: Name of the plugin that serves each offered operation; None: no plugin can.
    :ivar messages: Complaints that go with any choice.
    :ivar untested: Warnings of the decision, less that of plugins passed over.
    """

    config: str | None = None
    choice: Choice = field(default_factory=Choice)
    candidates: Sequence[Candidate] = ()
    chosen: str | None = None
    serving: dict[str, str | None] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    untested: Sequence[str] = ()


def examine(host: Host, *, builds: bool, verbose: bool) -> JsonObject:
    """Examine this installation; return the keys documented in :mod:`tokendraw.cli.verbs.doctor`.

    :param builds: build for each operation with a chosen plugin.
    :param verbose: show on stderr the traceback of a plugin that fails to build, and the output of the plugins.
    """
    variables = {name: text for name, text in sorted(os.environ.items()) if name.startswith("TOKENDRAW_")}
    negotiation = _negotiate(host)
    chosen, serving, candidates = negotiation.chosen, negotiation.serving, negotiation.candidates
    names = [name for name, plugin in serving.items() if plugin] if builds else []
    torch_error, outcomes = _build(names, verbose=verbose)
    main, warned, errors = outcomes.get(MAIN_OPERATION), negotiation.untested, []
    if main is not None and chosen is not None:
        chosen, warned = main.chosen, main.warnings
        errors = [main.error] if main.error and main.culprit is None else []
    if torch_error is not None:
        chosen, serving, errors = None, dict.fromkeys(serving), [torch_error]
    needed, packages = libraries(candidates), origins(candidates)
    commands = [examined(command) for command in installed_commands()]
    heavy = _heavy_imports(candidates)
    faults = findings(
        [*negotiation.messages, *errors, *warned],
        needed,
        candidates,
        packages,
        outcomes,
        heavy,
        negotiation.choice,
        commands,
    )
    shown = sorted((_as_built(candidate, main) for candidate in candidates), key=rank)
    built = {name: {key: getattr(build, key) for key in _BUILD_KEYS} for name, build in outcomes.items()}
    return {
        "error": None if chosen else "A program gets no sampler here.",
        "tokendraw": tokendraw.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "libraries": [{**asdict(library), "fits": library.fits} for library in needed],
        "upstreams": upstreams(candidates),
        "engines": [asdict(engine) for engine in engines()],
        "commands": [asdict(command) for command in commands],
        "host": host_json(host),
        "settings": {
            "variables": {printable(name): printable(text) for name, text in variables.items()},
            "config": negotiation.config,
        },
        "candidates": [candidate_json(candidate) for candidate in shown],
        "origins": [asdict(origin) for origin in packages],
        "chosen": chosen,
        "operations": serving | {name: outcome.chosen for name, outcome in outcomes.items()},
        "builds": built if builds else None,
        "heavy_imports": heavy,
        "findings": [asdict(fault) for fault in faults],
    }


def _negotiate(host: Host) -> _Negotiation:
    facts = _Negotiation()
    with plugins_at_work(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # the findings repeat the warnings
        try:
            settings = _settings.read_settings()
            facts.config = printable(str(settings.config)) if settings.config else None
            facts.choice = settings.choice()
            fatal = _fatal_imports(facts.choice)
            by_operation = _resolve.discover_all(fatal)
            found = (
                replace(c, state=State.BROKEN, reason=fatal[c.name]) if c.name in fatal else c
                for c in by_operation[MAIN_OPERATION]
            )
            facts.candidates = sorted(found, key=rank)
            if fatal:  # which a program that looks for plugins loads too
                return facts
            infos = [info for candidate in facts.candidates if (info := described(candidate))]
            for name, candidates in by_operation.items():
                if any(name in info.operations for info in infos):
                    facts.serving[name] = _chosen(name, candidates, host, settings)
            misnamed = settings.all_warnings(candidate.name for candidate in facts.candidates)
            facts.messages += [as_error(text) for text in misnamed] if settings.strict else misnamed
            resolution = tokendraw.resolve()
            if settings.strict and (misnamed or resolution.warnings):
                outcome = using(resolution.chosen)
                facts.messages += [as_error(text, outcome) for text in resolution.warnings]
            else:
                facts.chosen, facts.untested = resolution.chosen, resolution.untested
            if all(candidate.name != "native" for candidate in facts.candidates):
                facts.messages += _without_native(resolution, facts.serving)
        except (TokendrawError, TokendrawWarning) as error:
            facts.messages += [str(error)] if str(error) not in facts.messages else []
    return facts


def _fatal_imports(choice: Choice) -> dict[str, str]:
    """Load each third party's plugin in a new process; map those that end it, or hang, to the reason."""
    found = [c for c in admit(find_entry_points(), choice) if c.state is State.FOUND and not c.first_party]
    with ThreadPoolExecutor() as pool:
        reasons = pool.map(fatal_import, [candidate.entry_point for candidate in found])
        return {candidate.name: reason for candidate, reason in zip(found, reasons, strict=True) if reason}


def _without_native(resolution: Resolution, serving: Mapping[str, str | None]) -> Iterator[str]:
    """Name the kinds of rows and the operations that nothing serves where the reference is missing."""
    rows = resolution.beyond if resolution.companion is None else ()
    missing = [*rows, *(f"the operation {name!r}" for name in operations.FOLDERS if not serving.get(name))]
    if missing:
        yield f"No installed plugin serves {all_of(missing)}; run {NATIVE}."


def _chosen(
    operation: str, candidates: Sequence[Candidate], host: Host, settings: _settings.Settings
) -> str | None:
    about = operations.find_operation(operation)
    choice = settings.choice(binds=operations.is_own(about))
    try:
        return _resolve.decide(candidates, host, about.need(), choice, operation=operation).chosen
    except TokendrawError:
        return None


def _build(names: Sequence[str], *, verbose: bool) -> tuple[str | None, Mapping[str, Build]]:
    """Build for each operation; without names import torch alone, unless this process has torch."""
    if not names and (hasattr(sys.modules.get("torch"), "Tensor") or find_spec("torch") is None):
        return None, {}
    with progress(f"building what serves {all_of(names)}" if names else "importing torch"):
        return build(names, verbose=verbose)


def _as_built(candidate: Candidate, outcome: Build | None) -> Candidate:
    reason = outcome.rejections.get(candidate.name) if outcome else None
    if reason is None or candidate.state is not State.AVAILABLE:
        return candidate
    return replace(candidate, state=State.UNAVAILABLE, reason=reason, rejection=reason)


def _heavy_imports(candidates: Sequence[Candidate]) -> dict[str, Sequence[str]]:
    """Load each described plugin in a new process, in parallel; return heavy imports by plugin, if any."""
    loaded = [c for c in candidates if c.info is not None]
    with ThreadPoolExecutor() as pool:
        modules = pool.map(heavy_imports, [candidate.entry_point for candidate in loaded])
        return {candidate.name: names for candidate, names in zip(loaded, modules, strict=True) if names}
