"""Collects the checkup of ``tokendraw doctor``: facts about the installation, and faults."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

import tokendraw
from tokendraw import operations
from tokendraw.backends.description.host import Host
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.discovery.heavy_imports import heavy_imports
from tokendraw.backends.machine import detect
from tokendraw.backends.resolution.advice import using
from tokendraw.backends.resolution.candidate import Candidate, Choice, State
from tokendraw.cli.describe import described, rank
from tokendraw.cli.diagnosis.building import Build, build
from tokendraw.cli.diagnosis.engines import engines
from tokendraw.cli.diagnosis.findings import Finding, findings
from tokendraw.cli.diagnosis.libraries import Library, libraries
from tokendraw.cli.diagnosis.origins import Origin, origins
from tokendraw.cli.diagnosis.upstreams import UpstreamState, upstreams
from tokendraw.cli.installed_commands import InstalledCommand, examined_commands
from tokendraw.cli.terminal.tables import plugins_at_work, progress
from tokendraw.engines import EngineState
from tokendraw.errors.exceptions import TokendrawError, TokendrawWarning
from tokendraw.errors.formatting import all_of, printable
from tokendraw.errors.notices import as_error
from tokendraw.providers import resolve as _resolve

MAIN_OPERATION = "sample"
"""The operation that the verdict, and the exit code, are about."""


@dataclass
class Checkup:
    """Facts about an installation, and the faults of it; after an error some facts keep their defaults.

    :ivar variables: Variables of tokendraw by name.
    :ivar config: Path of the configuration file in force.
    :ivar serving: Name of the plugin that serves each offered operation; None: no plugin can.
    :ivar builds: Outcome of building for each operation with a chosen plugin; None: nothing was built.
    """

    host: Host
    variables: Mapping[str, str]
    config: str | None = None
    choice: Choice = field(default_factory=Choice)
    candidates: Sequence[Candidate] = ()
    chosen: str | None = None
    serving: dict[str, str | None] = field(default_factory=dict)
    builds: Mapping[str, Build] | None = None
    libraries: Sequence[Library] = ()
    upstreams: Sequence[UpstreamState] = ()
    engines: Sequence[EngineState] = ()
    commands: Sequence[InstalledCommand] = ()
    origins: Sequence[Origin] = ()
    heavy_imports: Mapping[str, Sequence[str]] = field(default_factory=dict)
    findings: Sequence[Finding] = ()


def examine(*, builds: bool, verbose: bool) -> Checkup:
    """Examine this installation.

    :param builds: build for each operation with a chosen plugin.
    :param verbose: show on stderr the traceback of a plugin that fails to build, and the output of the plugins.
    """
    variables = {name: text for name, text in sorted(os.environ.items()) if name.startswith("TOKENDRAW_")}
    checkup = Checkup(
        detect.detect_host(), {printable(name): printable(text) for name, text in variables.items()}
    )
    messages, warned = _negotiate(checkup)
    is_resolved = checkup.chosen is not None
    errors, outcomes = _build(checkup, builds=builds, verbose=verbose)
    main, candidates = outcomes.get(MAIN_OPERATION), checkup.candidates
    warned = main.warnings if main is not None and is_resolved else warned
    checkup.libraries, checkup.upstreams = libraries(candidates), upstreams(candidates)
    checkup.engines, checkup.commands = engines(), examined_commands()
    checkup.origins, checkup.heavy_imports = origins(candidates), _heavy_imports(candidates)
    checkup.builds = outcomes if builds else None
    checkup.findings = findings(
        [*messages, *errors, *warned],
        checkup.libraries,
        candidates,
        checkup.origins,
        outcomes,
        checkup.heavy_imports,
        checkup.choice,
        checkup.commands,
    )
    checkup.candidates = sorted((_as_built(candidate, main) for candidate in candidates), key=rank)
    return checkup


def _negotiate(checkup: Checkup) -> tuple[list[str], Sequence[str]]:
    """Discover and resolve as a program does.

    :returns: messages that go with any choice, and warnings of the decision, less that of plugins passed over.
    """
    messages: list[str] = []
    with plugins_at_work(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # the findings repeat the warnings
        try:
            settings = _settings.read_settings()
            checkup.config = printable(str(settings.config)) if settings.config else None
            checkup.choice = settings.choice()
            by_operation = _resolve.discover_all()
            checkup.candidates = sorted(by_operation[MAIN_OPERATION], key=rank)
            infos = [info for candidate in checkup.candidates if (info := described(candidate))]
            for name, candidates in by_operation.items():
                if any(name in info.operations for info in infos):
                    checkup.serving[name] = _chosen(name, candidates, checkup)
            misnamed = settings.all_warnings(candidate.name for candidate in checkup.candidates)
            messages += [as_error(text) for text in misnamed] if settings.strict else misnamed
            resolution = tokendraw.resolve()
            if settings.strict and (misnamed or resolution.warnings):
                outcome = using(resolution.chosen)
                messages += [as_error(text, outcome) for text in resolution.warnings]
            else:
                checkup.chosen = resolution.chosen
                return messages, resolution.untested
        except (TokendrawError, TokendrawWarning) as error:
            messages += [str(error)] if str(error) not in messages else []
    return messages, ()


def _chosen(operation: str, candidates: Sequence[Candidate], checkup: Checkup) -> str | None:
    need = operations.find_operation(operation).need()
    try:
        return _resolve.decide(candidates, checkup.host, need, checkup.choice, operation=operation).chosen
    except TokendrawError:
        return None


def _build(checkup: Checkup, *, builds: bool, verbose: bool) -> tuple[list[str], dict[str, Build]]:
    """Build for each operation, and correct who serves by the outcomes; return errors, and outcomes by operation.

    Where nothing is built, import torch alone, unless this process has torch.
    """
    names = [name for name, chosen in checkup.serving.items() if chosen] if builds else []
    if not names and (hasattr(sys.modules.get("torch"), "Tensor") or find_spec("torch") is None):
        return [], {}
    with progress(f"building what serves {all_of(names)}" if names else "importing torch"):
        torch_error, outcomes = build(names, verbose=verbose)
    errors = [] if torch_error is None else [torch_error]
    if torch_error is not None:
        checkup.chosen, checkup.serving = None, dict.fromkeys(checkup.serving)
    main = outcomes.get(MAIN_OPERATION)
    if main is not None and checkup.chosen is not None:
        checkup.chosen = main.chosen
        errors += [main.error] if main.error and main.culprit is None else []
    checkup.serving |= {name: outcome.chosen for name, outcome in outcomes.items()}
    return errors, outcomes


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
