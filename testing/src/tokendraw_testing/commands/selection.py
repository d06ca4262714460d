"""Selects the installed sampler, its subject, and the properties to check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tokendraw
from tokendraw import PluginError, TokendrawError
from tokendraw.resolution import Candidate, detect_host
from tokendraw.tools import all_of, how_to_install, nearest, require_torch

if TYPE_CHECKING:
    from tokendraw.plugin import GumbelDtype
    from tokendraw_testing import Subject
    from tokendraw_testing.kit.property import Property


def select_properties(only: Sequence[str], operation: str | None) -> tuple[Property, ...]:
    """Select the properties to check, in the order of a report.

    :raises TokendrawError: a library is missing that the kit needs.
    :raises InvalidParameterError: there is no property of one of these names.
    """
    require_libraries()
    from tokendraw_testing.kit.run import select_properties

    return select_properties(only or None, operation)


def require_libraries() -> None:
    """Import the kit.

    :raises TokendrawError: a library is missing that the kit needs.
    """
    require_torch("Checking")
    try:
        import tokendraw_testing.kit.run
        import tokendraw_testing.kit.statistical_tests  # noqa: F401
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("numpy", "scipy"):
            raise
        raise TokendrawError(
            f"Checking needs numpy and scipy, found no {missing}; run {how_to_install('tokendraw-testing')}."
        ) from error


def find_candidate(name: str, device: str | None) -> Candidate:
    """Find the plugin named ``name``.

    :raises TokendrawError: there is none; the message has the nearest name.
    """
    candidates = tokendraw.discover(host=detect_host(device))
    matches = [candidate for candidate in candidates if candidate.name == name]
    if matches:  # beside the owner of a reserved name there may be others, none of which is ever loaded
        return max(matches, key=lambda candidate: (candidate.info is not None, candidate.first_party))
    names = sorted({candidate.name for candidate in candidates})
    if not names:
        install = how_to_install("tokendraw-native")
        raise TokendrawError(f"'{name}' needs to be an installed sampler, found none; run {install}.")
    suggestion = nearest(name, names)
    command = "list" if suggestion is None else f"check {suggestion}"
    raise TokendrawError(
        f"'{name}' needs to be an installed sampler, found {all_of(names)}. Try: tokendraw {command}"
    )


def make_subject(
    name: str,
    device: str | None,
    operation: str | None,
    gumbel_dtype: GumbelDtype | None,
    *,
    quick: bool,
    seed: int,
) -> Subject:
    """Build and prove the sampler.

    :raises SamplerUnavailableError: it cannot serve this machine; the reason in words.
    :raises TokendrawError: it did not build, or did not pass its proof.
    """
    from tokendraw_testing import Subject

    need = {} if gumbel_dtype is None else {"gumbel_dtype": gumbel_dtype}
    subject = Subject.installed(name, device=device, quick=quick, seed=seed, operation=operation, need=need)
    try:
        subject.built(operation or next(iter(subject.capabilities)))
    except PluginError as error:
        raise TokendrawError(
            f"'{name}' needs to build and to pass its proof on {subject.device} before it can be checked, "
            f"found: {error}. Mend the plugin."
        ) from error
    return subject
