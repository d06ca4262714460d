"""Choose the plugin for an operation: a pure function of candidates, host, need and choice that gives its reasons.

Nothing here looks at this machine, so the answer for an H100 or an MI300X can be tested on a laptop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tokendraw.backends.description import Host, HostNeed, Operation
from tokendraw.backends.resolution import checks, messages, upstream
from tokendraw.backends.resolution.candidate import (
    Candidate,
    Choice,
    Decision,
    Resolution,
    State,
    admit,
    conflicts,
)


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
    """Decide from facts alone.

    :param companions: whether another one may serve the rows that the chosen one cannot.
    :raises SamplerUnavailableError: the explicit choice cannot be honoured, or nothing is available.
    :raises DuplicatePluginError: two distributions claim the chosen name or, by default, a name in the order.
    """
    admitted = admit(candidates, choice)
    named = choice.priority if choice.sampler is None else (choice.sampler,)
    disputed = {name: owners for name, owners in conflicts(admitted).items() if name in named}
    if disputed:
        raise messages.duplicate_name(disputed, choice)
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
        raise messages.nothing_serves(assessed, operation.name, host, choice)
    partial, companion, beyond = _companions(chosen, available if companions else (), operation, need)
    if choice.names is not None and companions:
        pinned = [
            _available(name, assessed, operation, host, choice) for name in choice.names[operation.name]
        ]
        partial, companion = pinned[1] if len(pinned) > 2 else None, pinned[-1] if len(pinned) > 1 else None
    offered = chosen.capabilities(operation.name)
    if companion is None and (missing := checks.first_of(operation.default_checks, offered, host, need)):
        raise messages.explicit_refusal(missing, chosen.name, assessed, operation.name, host, choice)
    fallback = None
    if choice.sampler is None:
        fallback = messages.fallback_warning(chosen, assessed, operation.name, host, choice)
    untested = [
        text for c in (chosen, partial, companion) if c is not None and (text := messages.untested_warning(c))
    ]
    return Resolution(
        operation=operation.name,
        host=host,
        need=need,
        choice=choice,
        chosen=chosen.name,
        companion=companion.name if companion else None,
        decisions=_decisions(assessed, chosen, (partial, companion), operation, choice),
        warnings=(*([fallback] if fallback else []), *untested),
        fallback=fallback,
        beyond=beyond,
        partial_companion=partial.name if partial else None,
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
        raise messages.unknown_name(name, assessed, operation.name, host, choice)
    first = min(named, key=lambda c: not c.first_party)
    raise messages.explicit_refusal(str(first.reason), first.name, assessed, operation.name, host, choice)


def _companions(
    chosen: Candidate, available: Sequence[Candidate], operation: Operation, need: HostNeed
) -> tuple[Candidate | None, Candidate | None, tuple[str, ...]]:
    """Find the companions for the rows or calls unsupported by the chosen candidate, and list their kinds.

    Returns (the best candidate for some of the kinds that ranks before the chosen one, which the user named; the best
    candidate for all of them; kinds). Where the first is the second, or the second is missing, the first is None.
    """
    capabilities = chosen.capabilities(operation.name)
    kinds = operation.unsupported_kinds(capabilities, need)
    partial, is_preferred = None, True
    for other in available if kinds else ():
        offered = other.capabilities(operation.name)
        if other.name == chosen.name:
            is_preferred = False
        elif operation.covers(offered, capabilities, need):
            return partial, other, kinds
        elif is_preferred and not set(kinds) <= set(operation.unsupported_kinds(offered, need)):
            partial = partial or other
    return None, None, kinds


def _decisions(
    assessed: Sequence[Candidate],
    chosen: Candidate,
    companions: tuple[Candidate | None, Candidate | None],
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
            where = "" if candidate is companions[1] else ", where it can serve all of them in a call"
            serves = f"serves the {operation.served} that {chosen.name} cannot{where}"
        if candidate.info and candidate.info.upstream:
            behaviour = upstream.behaviour(
                candidate.info.upstream, candidate.upstream_version, operation.name
            )
        return "; ".join(filter(None, (standing(candidate), serves, behaviour)))

    def group(candidate: Candidate) -> int:
        return 0 if candidate is chosen else 1 if candidate.state is State.AVAILABLE else 2

    return tuple(Decision.of(c, reason(c)) for c in sorted(assessed, key=group))
