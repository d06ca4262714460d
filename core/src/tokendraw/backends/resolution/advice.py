"""Words the warnings about a decision: a plugin was passed over, an upstream version is untested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokendraw.backends.description.host import Host
from tokendraw.backends.description.plugin_info import is_name
from tokendraw.backends.resolution import checks
from tokendraw.backends.resolution import upstream as _upstream
from tokendraw.backends.resolution.candidate import Candidate, Choice, State
from tokendraw.errors.formatting import all_of


def fallback(
    chosen: Candidate, assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> str | None:
    """Warn about installed, higher-ranked plugins that were passed over; None without any."""
    served = {c.name for c in assessed if c.state is State.AVAILABLE}
    passed = [
        c
        for c in assessed
        if c.name not in served and _is_expected(c, operation, host) and _outranks(c, chosen, choice)
    ]
    if not passed:
        return None
    # Two claimants of one name share its reason.
    found = "; ".join(dict.fromkeys(f"{c.name!r} was passed over: {c.reason}" for c in passed))
    disable = disable_setting((c.name for c in passed), choice)
    return f"{found}.{using(chosen.name)} Set {disable} to silence this."


def failed_call(name: str, reason: str, successor: str, choice: Choice) -> str:
    """Report a backend whose call failed, and its successor."""
    disable = disable_setting([name], choice)
    return f"{name!r} failed: {reason}.{using_from_here_on(successor)} Set {disable} to silence this."


def using(name: str) -> str:
    """Name the selected sampler: the sentence of :func:`fallback` that an error leaves out."""
    return f" Using {name!r}."


def using_from_here_on(name: str) -> str:
    """Name the successor: the sentence of :func:`failed_call` that an error leaves out."""
    return f" Using {name!r} from here on."


def disable_setting(names: Iterable[str], choice: Choice) -> str:
    """Write the variable with the whole list, to replace the list of the variable or the configuration file."""
    return f"TOKENDRAW_DISABLE={','.join(dict.fromkeys([*choice.disabled, *names]))}"


def untested(candidate: Candidate) -> str | None:
    """Warn about an untested upstream version within the range; None for any other version, and for any of torch."""
    upstream = candidate.info.upstream if candidate.info else None
    installed = candidate.upstream_version
    if upstream is None or installed is None or _upstream.is_tested(upstream, installed):
        return None
    if upstream.distribution == "torch":  # the program brought it, and the proof has just drawn with it
        return None
    known = f"was tested with {all_of(upstream.tested)}" if upstream.tested else "names no tested version"
    return (
        f"{candidate.name!r} needs {upstream.distribution} {upstream.versions} and {known}, found {installed}. "
        f"Set TOKENDRAW_DISABLE={candidate.name} to do without it."
    )


def _is_expected(candidate: Candidate, operation: str, host: Host) -> bool:
    """Whether a user expects a plugin to run: not switched off, upstream installed, made for operation and device."""
    if candidate.state not in (State.UNAVAILABLE, State.BROKEN, State.INCOMPATIBLE):
        return False
    capabilities = candidate.capabilities(operation)
    if capabilities is not None and not checks.is_made_for(capabilities, host):
        return False
    if candidate.info is None or candidate.state is not State.UNAVAILABLE:
        return is_name(candidate.name)  # nobody can choose any other, nor name it in TOKENDRAW_DISABLE
    absent = candidate.info.upstream is not None and candidate.upstream_version is None
    return capabilities is not None and not absent


def _outranks(candidate: Candidate, chosen: Candidate, choice: Choice) -> bool:
    """Whether a candidate has a higher rank than the chosen candidate.

    A plugin too broken to state its priority does: silence would hide the loss of a fast plugin.
    """
    if candidate.info is None:
        return choice.place(candidate.name) <= choice.place(chosen.name)
    return choice.rank(candidate) < choice.rank(chosen)
