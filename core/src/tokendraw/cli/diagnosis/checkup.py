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


@dataclass(frozen=True)
class Checkup:
    """Facts about an installation, and the faults of it.

    :ivar serving: Name of the plugin that serves each offered operation; None: no plugin can.
    :ivar builds: Outcome of building for each operation with a chosen plugin; None: nothing was built.
    """

    host: Host
    variables: Mapping[str, str]
    config: str | None
    candidates: Sequence[Candidate]
    libraries: Sequence[Library]
    upstreams: Sequence[UpstreamState]
    engines: Sequence[EngineState]
    commands: Sequence[InstalledCommand]
    origins: Sequence[Origin]
    chosen: str | None
    serving: Mapping[str, str | None]
    builds: Mapping[str, Build] | None
    heavy_imports: Mapping[str, Sequence[str]]
    findings: Sequence[Finding]


@dataclass
class _Negotiation:
    """Facts from plugins and settings before any build; after an error the later fields keep their defaults.

    :ivar warnings: Warnings of the decision, without the warning about plugins that were passed over.
    """

    config: str | None = None
    choice: Choice = field(default_factory=Choice)
    assessed: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    serving: dict[str, str | None] = field(default_factory=dict)
    chosen: str | None = None
    warnings: Sequence[str] = ()
    messages: list[str] = field(default_factory=list)


def examine(*, builds: bool, verbose: bool) -> Checkup:
    """Examine this installation.

    :param builds: build for each operation with a chosen plugin.
    :param verbose: show on stderr the traceback of a plugin that fails to build, and the output of the plugins.
    """
    host = detect.detect_host()
    negotiation = _negotiate(host)
    candidates, choice = negotiation.candidates, negotiation.choice
    outcomes = _build(negotiation, builds=builds, verbose=verbose)
    required, places, commands = libraries(candidates), origins(candidates), examined_commands()
    heavy = _heavy_imports(candidates)
    messages = [*negotiation.messages, *negotiation.warnings]
    variables = {name: text for name, text in sorted(os.environ.items()) if name.startswith("TOKENDRAW_")}
    return Checkup(
        host=host,
        variables={printable(name): printable(text) for name, text in variables.items()},
        config=negotiation.config,
        candidates=sorted((_as_built(c, outcomes.get(MAIN_OPERATION)) for c in candidates), key=rank),
        libraries=required,
        upstreams=upstreams(candidates, negotiation.assessed),
        engines=engines(),
        commands=commands,
        origins=places,
        chosen=negotiation.chosen,
        serving=negotiation.serving,
        builds=outcomes if builds else None,
        heavy_imports=heavy,
        findings=findings(messages, required, candidates, places, outcomes, heavy, choice, commands),
    )


def _negotiate(host: Host) -> _Negotiation:
    """Discover and resolve as a program does, and note its error or warnings."""
    negotiation = _Negotiation()
    with plugins_at_work(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TokendrawWarning)  # the findings repeat the warnings
        try:
            settings = _settings.read_settings()
            negotiation.config = printable(str(settings.config)) if settings.config else None
            negotiation.choice = settings.choice()
            negotiation.assessed = _resolve.discover_all()
            negotiation.candidates = sorted(negotiation.assessed[MAIN_OPERATION], key=rank)
            infos = [info for candidate in negotiation.candidates if (info := described(candidate))]
            for name, candidates in negotiation.assessed.items():
                if any(name in info.operations for info in infos):
                    negotiation.serving[name] = _chosen(name, candidates, host, negotiation.choice)
            misnamed = settings.all_warnings(candidate.name for candidate in negotiation.candidates)
            negotiation.messages += [as_error(text) for text in misnamed] if settings.strict else misnamed
            resolution = tokendraw.resolve()
            if settings.strict and (misnamed or resolution.warnings):
                outcome = using(resolution.chosen)
                negotiation.messages += [as_error(text, outcome) for text in resolution.warnings]
            else:
                negotiation.chosen, negotiation.warnings = resolution.chosen, resolution.untested
        except (TokendrawError, TokendrawWarning) as error:
            negotiation.messages += [str(error)] if str(error) not in negotiation.messages else []
    return negotiation


def _chosen(operation: str, candidates: Sequence[Candidate], host: Host, choice: Choice) -> str | None:
    need = operations.get(operation).need()
    try:
        return _resolve.decide(candidates, host, need, choice, operation=operation).chosen
    except TokendrawError:
        return None


def _build(negotiation: _Negotiation, *, builds: bool, verbose: bool) -> dict[str, Build]:
    """Build for each operation, and correct ``negotiation`` by the outcomes.

    Where nothing is built, import torch alone, unless this process has torch.
    """
    names = [name for name, chosen in negotiation.serving.items() if chosen] if builds else []
    if not names and (hasattr(sys.modules.get("torch"), "Tensor") or find_spec("torch") is None):
        return {}
    with progress(f"building what serves {all_of(names)}" if names else "importing torch"):
        torch_error, outcomes = build(names, verbose=verbose)
    if torch_error is not None:
        negotiation.messages.append(torch_error)
        negotiation.chosen, negotiation.serving = None, dict.fromkeys(negotiation.serving)
    main = outcomes.get(MAIN_OPERATION)
    if main is not None and negotiation.chosen is not None:
        negotiation.chosen, negotiation.warnings = main.chosen, main.warnings
        negotiation.messages += [main.error] if main.error and main.culprit is None else []
    negotiation.serving |= {name: outcome.chosen for name, outcome in outcomes.items()}
    return outcomes


def _as_built(candidate: Candidate, outcome: Build | None) -> Candidate:
    """Mark an available candidate as unavailable if building failed."""
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
