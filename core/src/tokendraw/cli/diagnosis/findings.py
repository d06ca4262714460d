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
from tokendraw.cli.diagnosis.mending import remedy, remedy_of_build
from tokendraw.cli.diagnosis.origins import Origin
from tokendraw.cli.installed_commands import InstalledCommand
from tokendraw.errors.formatting import all_of

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_DEFAULT = Choice()


@dataclass(frozen=True)
class Finding:
    """A fault of the installation."""

    problem: str
    mend: str | None = None
    """Command that mends the fault; None if ``problem`` holds the advice."""


def findings(
    messages: Iterable[str],
    libraries: Iterable[Library],
    candidates: Sequence[Candidate],
    origins: Sequence[Origin] = (),
    builds: Mapping[str, Build] = _EMPTY,
    heavy_imports: Mapping[str, tuple[str, ...]] = _EMPTY,
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
    upstreams = {info.upstream.distribution for c in candidates if (info := described(c)) and info.upstream}
    return [
        *(Finding(message) for message in messages),
        *(
            _of_library(library)
            for library in libraries
            if not library.fits and library.name not in upstreams
        ),
        *(finding for candidate in candidates for finding in _of_candidate(candidate, candidates, choice)),
        *(finding for candidate in candidates for finding in _of_builds(candidate, builds, choice)),
        *(Finding(slow_start(name, modules)) for name, modules in heavy_imports.items()),
        *(finding for candidate in candidates for finding in _of_table(candidate)),
        *(
            Finding(f"The command {command.name!r} of {command.owner} cannot be used: {command.reason}.")
            for command in commands
            if command.reason is not None
        ),
        *(_of_origin(origin, origins[0]) for origin in origins if origin.path and not origin.beside_core),
    ]


def _of_library(library: Library) -> Finding:
    found = f"version {library.installed}" if library.installed else "none installed"
    return Finding(
        f"'{library.needed_by}' needs {library.name} {library.needed}, found {found}.".replace(" ,", ","),
        f"pip install '{library.name}{library.needed}'",
    )


def _of_origin(origin: Origin, core: Origin) -> Finding:
    return Finding(
        f"'{origin.name}' goes by the name of tokendraw's own plugin and comes from '{origin.path}', "
        f"while the core is '{core.path}'. Uninstall it or take it off Python's path, unless you put it there."
    )


def _of_candidate(candidate: Candidate, candidates: Sequence[Candidate], choice: Choice) -> Iterator[Finding]:
    mend = remedy(candidate, candidates, choice)
    if mend is not None:
        reason = (candidate.reason or "").removesuffix(f"; run `{mend.command}`")
        problem = f"'{candidate.name}' is {candidate.state}: {reason}. {mend.advice}".rstrip()
        yield Finding(problem, mend.command)


def _of_builds(candidate: Candidate, builds: Mapping[str, Build], choice: Choice) -> Iterator[Finding]:
    """Find the reasons why a plugin could not be built, each with all operations that failed for it."""
    if candidate.info is None:
        return
    operations: dict[tuple[str, bool], list[str]] = {}
    for operation, build in builds.items():
        if candidate.name in build.rejections:
            key = (build.rejections[candidate.name], build.culprit == candidate.name)
            operations.setdefault(key, []).append(operation)
    for (reason, ended), names in operations.items():
        mend = remedy_of_build(candidate, reason, choice, ended=ended)
        problem = f"'{candidate.name}' cannot be built for {all_of(names)}: {reason}. {mend.advice}".rstrip()
        yield Finding(problem, mend.command)


def _of_table(candidate: Candidate) -> Iterator[Finding]:
    """Find where the files of an upstream contradict the table of releases of the plugin."""
    info, installed = described(candidate), candidate.upstream_version
    if info is None or info.upstream is None or installed is None:
        return
    for operation in info.upstream.found:
        differing = disagreement(info.upstream, installed, operation)
        if differing is not None:
            yield Finding(
                f"'{candidate.name}' knows that {info.upstream.distribution} {installed} {differing[0]}, and finds "
                f"in its files that it {differing[1]}. It goes by the files. Report it to {author_of(candidate.name)}."
            )
