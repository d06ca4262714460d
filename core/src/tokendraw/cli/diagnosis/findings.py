"""Finds the faults of an installation, each with the command that mends the fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tokendraw.backends.discovery.heavy_imports import slow_start
from tokendraw.backends.resolution.admission import author_of
from tokendraw.backends.resolution.candidate import Candidate, Choice
from tokendraw.backends.resolution.upstream import disagreement
from tokendraw.cli.describe import described
from tokendraw.cli.diagnosis.building import Build
from tokendraw.cli.diagnosis.libraries import Library
from tokendraw.cli.diagnosis.mending import Remedy, remedy, remedy_of_build
from tokendraw.cli.diagnosis.origins import Origin
from tokendraw.cli.installed_commands import InstalledCommand
from tokendraw.errors.formatting import all_of

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_DEFAULT = Choice()


@dataclass(frozen=True)
class Finding:
    """A fault of the installation.

    :ivar mend: Command that mends the fault; None if ``problem`` holds the advice.
    """

    problem: str
    mend: str | None = None


def findings(
    messages: Iterable[str],
    libraries: Iterable[Library],
    candidates: Sequence[Candidate],
    origins: Sequence[Origin] = (),
    builds: Mapping[str, Build] = _EMPTY,
    heavy_imports: Mapping[str, Sequence[str]] = _EMPTY,
    choice: Choice = _DEFAULT,
    commands: Iterable[InstalledCommand] = (),
) -> list[Finding]:
    """Collect the faults of an installation; a plugin for other machines is not a fault.

    :param messages: complaints of resolution and settings, each with its own advice.
    :param origins: origin of the core first, then those of its plugins.
    :param builds: outcome of building, by operation.
    :param heavy_imports: modules by plugin.
    :param commands: commands of distributions, those that fail with their reasons.
    """
    faults = [Finding(message) for message in messages]
    upstreams = {info.upstream.distribution for c in candidates if (info := described(c)) and info.upstream}
    for library in libraries:
        if not library.fits and library.name not in upstreams:
            needed = f"{library.name} {library.needed}".rstrip()
            version = f"version {library.installed}" if library.installed else "none installed"
            problem = f"'{library.needed_by}' needs {needed}, found {version}."
            faults.append(Finding(problem, f"pip install '{library.name}{library.needed}'"))
    for candidate in candidates:
        if mend := remedy(candidate, candidates, choice):
            reason = (candidate.reason or "").removesuffix(f"; run `{mend.command}`")
            faults.append(_of_plugin(candidate, f"is {candidate.state}: {reason}", mend))
    for candidate in candidates:
        faults += _of_builds(candidate, builds, choice)
    faults += [Finding(slow_start(name, tuple(modules))) for name, modules in heavy_imports.items()]
    for candidate in candidates:
        faults += _of_table(candidate)
    for command in commands:
        if command.reason is not None:
            problem = f"The command {command.name!r} of {command.owner} cannot be used: {command.reason}."
            faults.append(Finding(problem))
    for origin in origins:
        if origin.path and not origin.beside_core:
            problem = (
                f"'{origin.name}' goes by the name of tokendraw's own plugin and comes from '{origin.path}', while "
                f"the core is '{origins[0].path}'. Uninstall it or take it off Python's path, unless you put it there."
            )
            faults.append(Finding(problem))
    return faults


def _of_plugin(candidate: Candidate, fault: str, mend: Remedy) -> Finding:
    return Finding(f"'{candidate.name}' {fault}. {mend.advice}".rstrip(), mend.command)


def _of_builds(candidate: Candidate, builds: Mapping[str, Build], choice: Choice) -> Iterator[Finding]:
    """Find the reasons why a plugin could not be built, each with all operations that failed for it."""
    operations: dict[tuple[str, bool], list[str]] = {}
    for operation, build in builds.items():
        if candidate.info is not None and candidate.name in build.rejections:
            key = (build.rejections[candidate.name], build.culprit == candidate.name)
            operations.setdefault(key, []).append(operation)
    for (reason, ended), names in operations.items():
        mend = remedy_of_build(candidate, reason, choice, ended=ended)
        yield _of_plugin(candidate, f"cannot be built for {all_of(names)}: {reason}", mend)


def _of_table(candidate: Candidate) -> Iterator[Finding]:
    """Find where the files of an upstream contradict the table of releases of the plugin."""
    info, installed = described(candidate), candidate.upstream_version
    if info is None or info.upstream is None or installed is None:
        return
    for operation in info.upstream.found:
        if differing := disagreement(info.upstream, installed, operation):
            yield Finding(
                f"'{candidate.name}' knows that {info.upstream.distribution} {installed} {differing[0]}, and finds "
                f"in its files that it {differing[1]}. It goes by the files. Report it to {author_of(candidate.name)}."
            )
