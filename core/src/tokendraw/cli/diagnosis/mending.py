"""Finds the command that repairs or removes a plugin, from the reason of its state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import importlib_metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tokendraw.backends.description.plugin_info import API_VERSION
from tokendraw.backends.discovery.entry_points import installed_version
from tokendraw.backends.resolution.admission import FIRST_PARTY, author_of, conflicts
from tokendraw.backends.resolution.advice import disable_setting
from tokendraw.backends.resolution.candidate import Candidate, Choice, State
from tokendraw.backends.resolution.upstream import is_version, reason_against, requirement
from tokendraw.cli.describe import described
from tokendraw.errors.formatting import format_value, printable
from tokendraw.errors.install_commands import pip_install, where

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


class Remedy(NamedTuple):
    """A way to repair or remove a plugin."""

    command: str
    advice: str = ""
    """Sentence in front of a command that alone repairs nothing."""


def remedy(candidate: Candidate, candidates: Sequence[Candidate], choice: Choice) -> Remedy | None:
    """Find the remedy for a plugin by its state; None for a working plugin, or a plugin for other machines.

    Of several claimants of a name only the first has a remedy, for all claimants.
    """
    if candidate.state is State.INCOMPATIBLE and candidate.info is not None:
        is_core_old = candidate.info.api_version > API_VERSION
        return Remedy(_upgrade("tokendraw")) if is_core_old else _repair(candidate, choice)
    if candidate.state is State.BROKEN:
        if candidate.name in FIRST_PARTY and not candidate.first_party:
            return Remedy(f"pip uninstall {candidate.distribution}")
        claimants = conflicts(candidates).get(candidate.name, ())
        if candidate in claimants:
            names = [claimant.distribution for claimant in claimants]
            first, *others = (f"pip uninstall {' '.join(n for n in names if n != kept)}" for kept in names)
            return Remedy(f"{first} (or {', or '.join(others)})") if candidate is claimants[0] else None
        mend = _install_module(candidate, str(candidate.reason), choice) or _repair(candidate, choice)
        switch_off = _switch_off(candidate, choice)
        return mend if mend.advice else Remedy(f"{mend.command} (or switch it off: {switch_off})")
    info, installed = described(candidate), candidate.upstream_version
    if candidate.state is State.UNAVAILABLE and info is not None and info.upstream is not None:
        for operation in info.operations:
            if candidate.reason == reason_against(info.upstream, installed, operation):
                return Remedy(f"pip install '{requirement(info.upstream, installed, operation)}'")
    return None  # nothing is wrong, or something about this machine


def remedy_of_build(candidate: Candidate, reason: str, choice: Choice, *, ended: bool) -> Remedy:
    """Find the remedy for a plugin that could not be built.

    :param ended: whether building the plugin ended the process, or hung, so that no other plugin takes over.
    """
    if ended:
        return Remedy(_switch_off(candidate, choice), "No other sampler takes over from it.")
    advice = f"Mend that, or report it to {author_of(candidate.name)}."
    return _install_module(candidate, reason, choice) or Remedy(_switch_off(candidate, choice), advice)


def _repair(candidate: Candidate, choice: Choice) -> Remedy:
    """Upgrade a plugin from the index, unless the plugin came from a folder or a repository."""
    try:
        origin = importlib_metadata.distribution(candidate.distribution).origin
        folder = None if origin is None else str(origin.url).removeprefix("file://")
    except Exception:  # absent or damaged: which one depends on the damage and on the libraries' versions
        folder = None
    if candidate.first_party or folder is None:
        return Remedy(_upgrade(candidate.distribution))
    advice = f"It was installed from {format_value(folder)}: mend it there."
    return Remedy(_switch_off(candidate, choice), advice)


def _install_module(candidate: Candidate, reason: str, choice: Choice) -> Remedy | None:
    """Find the remedy for a missing module; None if no module is missing."""
    match = _NO_MODULE.search(reason)
    if match is None:
        return None
    module, distribution = match[1].partition(".")[0], candidate.distribution
    if module == candidate.entry_point.partition(":")[0].partition(".")[0].strip():
        advice = f"The module is its own: install {distribution} again from where it came from."
    elif missing := list(_missing_requirements(distribution, module)):
        return Remedy(" ".join(["pip install", *missing]))
    else:
        advice = f"Install what has the module {module!r}, which {distribution} does not require."
    return Remedy(_switch_off(candidate, choice), advice)


def _missing_requirements(distribution: str, module: str) -> Iterator[str]:
    """Yield the unmet requirements of a distribution, and unmet requirements of extras with the name of a module."""
    try:
        requirements = [Requirement(text) for text in importlib_metadata.requires(distribution) or ()]
    except Exception:  # absent or damaged, as above
        return
    for each in requirements:
        installed = installed_version(each.name)
        is_met = installed is not None and (
            not is_version(installed) or each.specifier.contains(installed, prereleases=True)
        )
        is_asked_for = each.marker is None or each.marker.evaluate({"extra": ""})
        if not is_met and (is_asked_for or canonicalize_name(each.name) == canonicalize_name(module)):
            yield printable(f"'{each.name}{each.specifier}'")


def _switch_off(candidate: Candidate, choice: Choice) -> str:
    return f"export {disable_setting([candidate.name], choice)}"


def _upgrade(distribution: str) -> str:
    place = where(distribution).strip()
    return pip_install(distribution, options="--upgrade") + (f" ({place})" if place else "")
