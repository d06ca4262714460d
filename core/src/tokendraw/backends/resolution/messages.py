"""Words refusals of a choice (asked, by whom, why not, what works, how to undo it) and warnings about a decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokendraw.backends.description import Host, is_name
from tokendraw.backends.resolution import checks
from tokendraw.backends.resolution import upstream as _upstream
from tokendraw.backends.resolution.candidate import (
    FIRST_PARTY_OPERATIONS,
    Candidate,
    Choice,
    Decision,
    State,
    claimants,
)
from tokendraw.errors import NATIVE, DuplicatePluginError, SamplerUnavailableError, all_of, nearest

INSTALL = f"run {NATIVE}"


def explicit_refusal(
    reason: str, name: str, assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> SamplerUnavailableError:
    others = [c.name for c in assessed if c.state is State.AVAILABLE and c.name != name]
    if others:
        works = f"Available here: {all_of(dict.fromkeys(others))}."
    elif operation in FIRST_PARTY_OPERATIONS or any(c.name == "native" for c in assessed):
        works = "Nothing else is available here."
    else:
        works = f"Nothing else is available here; {INSTALL}."
    asked = f", asked for by {choice.source}," if choice.source else ""
    error = SamplerUnavailableError(
        f"{name!r}{asked} cannot serve the operation {operation!r} on {host}: {reason}. "
        f"{works} {undo(choice)}"
    )
    error.decisions = _rejected(assessed)
    return error


def unknown_name(
    name: str, assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> SamplerUnavailableError:
    near = nearest(name, [c.name for c in assessed])
    hint = "" if near is None else f", the nearest installed name is {near!r}"
    reason = f"no plugin of that name is installed{hint}"
    return explicit_refusal(reason, name, assessed, operation, host, choice)


def nothing_serves(
    assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> SamplerUnavailableError:
    found = "; ".join(dict.fromkeys(f"{c.name}: {c.reason}" for c in assessed)) or "no plugin"
    native = next((c for c in assessed if c.name == "native"), None)
    if native is None and operation not in FIRST_PARTY_OPERATIONS:
        mend = f"{INSTALL[0].upper()}{INSTALL[1:]}."
    elif native is not None and native.state is State.DISABLED and "native" in choice.disabled:
        mend = f"Take 'native' out of {choice.disabled_source}."
    else:
        mend = "Mend one of them; `tokendraw doctor` says how."
    error = SamplerUnavailableError(
        f"No plugin can serve the operation {operation!r} on {host}. Found {found}. {mend}"
    )
    error.decisions = _rejected(assessed)
    return error


def duplicate_name(disputed: Mapping[str, Sequence[Candidate]], choice: Choice) -> DuplicatePluginError:
    found = "; ".join(
        f"{name!r} is claimed by {all_of(claimants(owners))}" for name, owners in disputed.items()
    )
    names = all_of(map(repr, disputed))
    way_out = "" if choice.sampler is not None else f", or take {names} out of {choice.priority_source}"
    return DuplicatePluginError(f"{found}. Uninstall all but one of them{way_out}.")


def install(what: str, decisions: Iterable[Decision]) -> str:
    """Advise to install ``what``, as a sentence begins, with the command for native unless native is there already.

    :param what: a sampler that serves more than those in ``decisions``, in words.
    """
    native = [decision for decision in decisions if decision.name == "native"]
    if not native:
        return f"Install {what} ({NATIVE})"
    if any(decision.accepted for decision in native):
        return f"Install {what}"
    return f"Make 'native' available, which is installed ({native[0].reason})"


def undo(choice: Choice) -> str:
    if choice.names is not None:
        return "Choose another one, on every rank."
    if choice.source.startswith("TOKENDRAW_"):
        step = f"Unset {choice.source}"
    elif choice.source.startswith("the argument ") or not choice.source:
        step = f"Leave out {choice.source.removeprefix('the argument ') or 'sampler='}"
    elif choice.source.startswith("--"):
        step = f"Leave out {choice.source}"
    else:
        step = f"Take 'sampler' out of {choice.source}"
    return f"{step} to let tokendraw choose."


def _rejected(assessed: Iterable[Candidate]) -> tuple[Decision, ...]:
    return tuple(Decision.of(c, c.reason or f"available, priority {c.priority}") for c in assessed)


def fallback_warning(
    chosen: Candidate, assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> str | None:
    """Warn about installed, higher-ranked plugins that were passed over; None without any."""
    served = {c.name for c in assessed if c.state is State.AVAILABLE}
    better = [c for c in assessed if c.name not in served and _outranks(c, chosen, choice)]
    passed = [c for c in better if _is_expected(c, operation, host)]
    if not passed:
        return None
    # Two claimants of one name share its reason.
    found = "; ".join(dict.fromkeys(f"{c.name!r} was passed over: {c.reason}" for c in passed))
    disable = disable_setting((c.name for c in passed), choice)
    return f"{found}.{using(chosen.name)} Set {disable} to silence this."


def using(name: str) -> str:
    """Name the selected sampler: the sentence of :func:`fallback_warning` that an error leaves out."""
    return f" Using {name!r}."


def disable_setting(names: Iterable[str], choice: Choice) -> str:
    """Write the variable with the whole list, to replace the list of the variable or the configuration file."""
    return f"TOKENDRAW_DISABLE={','.join(dict.fromkeys([*choice.disabled, *names]))}"


def untested_warning(candidate: Candidate) -> str | None:
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
    if candidate.info is None:  # it states no priority: silence would hide the loss of a fast plugin
        return choice.place(candidate.name) <= choice.place(chosen.name)
    return choice.rank(candidate) < choice.rank(chosen)
