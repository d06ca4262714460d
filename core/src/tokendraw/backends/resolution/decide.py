"""Choose the plugin for an operation: a pure function of candidates, host, need and choice that gives its reasons.

Nothing here looks at this machine, so the answer for an H100 or an MI300X can be tested on a laptop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tokendraw.backends.description import Host, HostNeed, Operation, is_name
from tokendraw.backends.resolution import checks, upstream
from tokendraw.backends.resolution.candidate import (
    FIRST_PARTY_OPERATIONS,
    Candidate,
    Choice,
    Decision,
    Resolution,
    State,
    admit,
    claimants,
    conflicts,
)
from tokendraw.errors import NATIVE, DuplicatePluginError, SamplerUnavailableError, all_of, nearest


def assess(
    candidate: Candidate, operation: Operation, host: Host, need: HostNeed, *, explicit: bool = False
) -> Candidate:
    """Mark a candidate as available, or as unavailable with its first reason; leave the others as they are.

    :param explicit: the user named it, so a companion may make up for what the default choice has to have.
    """
    info, capabilities = candidate.info, candidate.capabilities(operation.name)
    if candidate.state in (State.BROKEN, State.DISABLED, State.INCOMPATIBLE):
        return candidate
    if info is None:
        return replace(
            candidate, state=State.UNAVAILABLE, reason=candidate.reason or "it never described itself"
        )
    library, installed, reason = info.upstream, candidate.upstream_version, None
    if library is not None and installed is not None and capabilities is None:
        reason = upstream.refusal(library, installed, operation.name)
    reason = reason or checks.first_reason(operation, info.operations, host, need)
    if reason is None and not explicit:
        reason = checks.first_of(operation.default_checks, capabilities, host, need)
    if reason is None and library is not None:
        reason = upstream.reason_against(library, installed, operation.name)
    reason = reason or candidate.probe_reason or candidate.rejection
    return replace(candidate, state=State.UNAVAILABLE if reason else State.AVAILABLE, reason=reason)


def decide(
    candidates: Iterable[Candidate],
    host: Host,
    need: HostNeed,
    choice: Choice,
    *,
    operation: Operation,
    companions: bool = True,
) -> Resolution:
    """Decide from the arguments alone.

    :param companions: whether another one may serve the rows that the chosen one cannot.
    :raises SamplerUnavailableError: the explicit choice cannot be honoured, or nothing is available.
    :raises DuplicatePluginError: two distributions claim the chosen name or, by default, a name in the order.
    """
    admitted = admit(candidates, choice)
    named = choice.priority if choice.sampler is None else (choice.sampler,)
    disputed = {name: owners for name, owners in conflicts(admitted).items() if name in named}
    if disputed:
        raise duplicate_name(disputed, choice)
    assessed = sorted(
        (assess(c, operation, host, need, explicit=c.name == choice.sampler) for c in admitted),
        key=choice.rank,
    )
    available = [c for c in assessed if c.state is State.AVAILABLE]
    if choice.sampler is not None:
        chosen = _available(choice.sampler, assessed, operation, host, choice)
    elif available:
        chosen = available[0]
    else:
        raise nothing_serves(assessed, operation.name, host, choice)
    beside, beyond = _companions(chosen, available if companions else (), operation, need)
    if choice.names is not None and companions:
        beside = [
            _available(name, assessed, operation, host, choice) for name in choice.names[operation.name][1:]
        ]
    offered = chosen.capabilities(operation.name)
    if not beside and (missing := checks.first_of(operation.default_checks, offered, host, need)):
        raise explicit_refusal(missing, chosen.name, assessed, operation.name, host, choice)
    fallback = None
    if choice.sampler is None:
        fallback = fallback_warning(chosen, assessed, operation.name, host, choice)
    untested = [text for c in (chosen, *beside) if (text := untested_warning(c))]
    return Resolution(
        operation=operation.name,
        host=host,
        need=need,
        choice=choice,
        chosen=chosen.name,
        companion=beside[-1].name if beside else None,
        decisions=_decisions(assessed, chosen, beside, operation, choice),
        warnings=(*([fallback] if fallback else []), *untested),
        fallback=fallback,
        beyond=beyond,
        partial_companion=beside[0].name if len(beside) > 1 else None,
    )


def _available(
    name: str, assessed: Sequence[Candidate], operation: Operation, host: Host, choice: Choice
) -> Candidate:
    """Return the candidate of a name that was asked for; refuse the choice if it cannot serve."""
    named = [c for c in assessed if c.name == name]
    # Beside the genuine owner of a reserved name another distribution may claim it: that one is broken.
    for candidate in named:
        if candidate.state is State.AVAILABLE:
            return candidate
    if not named:
        near = nearest(name, [c.name for c in assessed])
        hint = "" if near is None else f", the nearest installed name is {near!r}"
        reason = f"no plugin of that name is installed{hint}"
        raise explicit_refusal(reason, name, assessed, operation.name, host, choice)
    first = min(named, key=lambda c: not c.first_party)
    raise explicit_refusal(str(first.reason), first.name, assessed, operation.name, host, choice)


def _companions(
    chosen: Candidate, available: Sequence[Candidate], operation: Operation, need: HostNeed
) -> tuple[list[Candidate], tuple[str, ...]]:
    """Find the companions for the rows or calls unsupported by the chosen candidate, and list their kinds.

    The last companion is the best candidate for all of the kinds; without one there is none. Before it comes the best
    one for some of the kinds, if that ranks before the chosen candidate, which the user named.
    """
    capabilities = chosen.capabilities(operation.name)
    kinds = operation.unsupported_kinds(capabilities, need)
    partial: list[Candidate] = []
    is_preferred = True
    for other in available if kinds else ():
        offered = other.capabilities(operation.name)
        if other.name == chosen.name:
            is_preferred = False
        elif operation.covers(offered, capabilities, need):
            return [*partial[:1], other], kinds
        elif is_preferred and not set(kinds) <= set(operation.unsupported_kinds(offered, need)):
            partial.append(other)
    return [], kinds


def _decisions(
    assessed: Sequence[Candidate],
    chosen: Candidate,
    companions: Sequence[Candidate],
    operation: Operation,
    choice: Choice,
) -> tuple[Decision, ...]:
    """List a decision for each candidate: the chosen one, the reserve, the rejected, each group by rank."""

    def standing(candidate: Candidate) -> str:
        if candidate.name in choice.priority:
            place_in_order = f"place {choice.place(candidate.name) + 1} in the user's order"
        else:
            place_in_order = f"priority {candidate.priority}"
        if candidate is chosen and choice.sampler is not None:
            return f"asked for by {choice.source or 'the caller'}"
        return f"{'best ' if candidate is chosen else ''}available, {place_in_order}"

    def reason(candidate: Candidate) -> str:
        if candidate.state is not State.AVAILABLE:
            return str(candidate.reason)
        serves = behaviour = None
        if candidate in companions:
            where = "" if candidate is companions[-1] else ", where it can serve all of them in a call"
            serves = f"serves the {operation.served} that {chosen.name} cannot{where}"
        if candidate.info and candidate.info.upstream:
            library, installed = candidate.info.upstream, candidate.upstream_version
            behaviour = upstream.behaviour(library, installed, operation.name)
        return "; ".join(filter(None, (standing(candidate), serves, behaviour)))

    def group(candidate: Candidate) -> int:
        return 0 if candidate is chosen else 1 if candidate.state is State.AVAILABLE else 2

    return tuple(Decision.of(c, reason(c)) for c in sorted(assessed, key=group))


# The words of refusals (asked, by whom, why not, what works, how to undo it) and of warnings.

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
    found = "; ".join(f"{name!r} is claimed by {all_of(claimants(c))}" for name, c in disputed.items())
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
    library, installed = candidate.info.upstream if candidate.info else None, candidate.upstream_version
    if library is None or installed is None or upstream.is_tested(library, installed):
        return None
    if library.distribution == "torch":  # the program brought it, and the proof has just drawn with it
        return None
    known = f"was tested with {all_of(library.tested)}" if library.tested else "names no tested version"
    return (
        f"{candidate.name!r} needs {library.distribution} {library.versions} and {known}, found {installed}. "
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
        return is_name(candidate.name)  # no caller can choose any other, nor name it in TOKENDRAW_DISABLE
    absent = candidate.info.upstream is not None and candidate.upstream_version is None
    return capabilities is not None and not absent


def _outranks(candidate: Candidate, chosen: Candidate, choice: Choice) -> bool:
    if candidate.info is None:  # it states no priority: silence would hide the loss of a fast plugin
        return choice.place(candidate.name) <= choice.place(chosen.name)
    return choice.rank(candidate) < choice.rank(chosen)
