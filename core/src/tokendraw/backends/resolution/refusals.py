"""Words refusals of a choice: what was asked, by whom, why not, what would work, how to undo it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokendraw.backends.description.host import Host
from tokendraw.backends.resolution.admission import FIRST_PARTY_OPERATIONS, claimants
from tokendraw.backends.resolution.candidate import Candidate, Choice, Decision, State
from tokendraw.errors.exceptions import DuplicatePluginError, SamplerUnavailableError
from tokendraw.errors.formatting import all_of, nearest
from tokendraw.errors.install_commands import NATIVE

INSTALL = f"run {NATIVE}"


def explicit(
    reason: str, name: str, assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> SamplerUnavailableError:
    """Refuse a sampler by name that is installed and cannot serve."""
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


def unknown(
    name: str, assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> SamplerUnavailableError:
    """Refuse a sampler by name that is not installed."""
    near = nearest(name, [c.name for c in assessed])
    reason = "no plugin of that name is installed"
    if near is not None:
        reason += f", the nearest installed name is {near!r}"
    return explicit(reason, name, assessed, operation, host, choice)


def nothing(
    assessed: Sequence[Candidate], operation: str, host: Host, choice: Choice
) -> SamplerUnavailableError:
    """Report that no candidate can serve."""
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


def duplicate(disputed: Mapping[str, Sequence[Candidate]], choice: Choice) -> DuplicatePluginError:
    """Report a requested name that two distributions claim."""
    found = "; ".join(
        f"{name!r} is claimed by {all_of(claimants(owners))}" for name, owners in disputed.items()
    )
    if choice.sampler is not None:
        return DuplicatePluginError(f"{found}. Uninstall all but one of them.")
    names = all_of(map(repr, disputed))
    return DuplicatePluginError(
        f"{found}. Uninstall all but one of them, or take {names} out of {choice.priority_source}."
    )


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
    """Say how an explicit choice is taken back."""
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
