"""Finds what is wrong with an installation, with the command that mends each fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tokendraw._exchange.plugin_info import API_VERSION
from tokendraw._messages.install import pip_install, where
from tokendraw._resolution.admission import FIRST_PARTY, author_of
from tokendraw._resolution.candidate import Candidate, State
from tokendraw._resolution.upstream import disagreement, reason_against, requirement
from tokendraw.cli.describe import described
from tokendraw.cli.diagnosis.libraries import Library
from tokendraw.cli.diagnosis.origins import Origin


@dataclass(frozen=True)
class Finding:
    """A fault of the installation."""

    problem: str
    mend: str | None = None
    """Command that mends it; None if ``problem`` already says what to do."""


def findings(
    messages: Iterable[str],
    libraries: Iterable[Library],
    candidates: Sequence[Candidate],
    origins: Sequence[Origin] = (),
) -> list[Finding]:
    """Collect what is wrong. A plugin for other machines is not a fault.

    :param messages: complaints of resolution and settings, each with its own advice.
    :param origins: origin of the core first, then those of its plugins.
    """
    upstreams = {info.upstream.distribution for c in candidates if (info := described(c)) and info.upstream}
    return [
        *(Finding(message) for message in messages),
        *(
            _of_library(library)
            for library in libraries
            if not library.fits and library.name not in upstreams
        ),
        *(finding for candidate in candidates for finding in _of_candidate(candidate, candidates)),
        *(finding for candidate in candidates for finding in _of_table(candidate)),
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


def _of_candidate(candidate: Candidate, candidates: Sequence[Candidate]) -> Iterator[Finding]:
    mend = _mend(candidate, candidates)
    if mend is not None:
        reason = (candidate.reason or "").removesuffix(f"; run `{mend}`")
        yield Finding(f"'{candidate.name}' is {candidate.state}: {reason}.", mend)


def _of_table(candidate: Candidate) -> Iterator[Finding]:
    """Find where the files of an upstream do something else than the plugin knows of its version."""
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


def _mend(candidate: Candidate, candidates: Sequence[Candidate]) -> str | None:
    """Find the command that repairs or removes a plugin; None if it works, or is for other machines."""
    distribution = candidate.distribution
    if candidate.state is State.INCOMPATIBLE and candidate.info is not None:
        behind = "tokendraw" if candidate.info.api_version > API_VERSION else distribution
        return _upgrade(behind)
    if candidate.state is State.BROKEN:
        rivals = [c for c in candidates if c.name == candidate.name]
        if not candidate.first_party and (len(rivals) > 1 or candidate.name in FIRST_PARTY):
            return f"pip uninstall {distribution}"
        switch_off = f"export TOKENDRAW_DISABLE={candidate.name}"
        return f"{_upgrade(distribution)} (or switch it off: {switch_off})"
    upstream = info.upstream if (info := described(candidate)) else None
    if candidate.state is not State.UNAVAILABLE or upstream is None:
        return None
    installed = candidate.upstream_version
    for operation in candidate.info.operations if candidate.info else ():
        if candidate.reason == reason_against(upstream, installed, operation):
            return f"pip install '{requirement(upstream, installed, operation)}'"
    return None  # something about this machine


def _upgrade(distribution: str) -> str:
    place = where(distribution).strip()
    return pip_install(distribution, options="--upgrade") + (f" ({place})" if place else "")
