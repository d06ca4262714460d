"""Decides from names alone which of the found plugins may be imported, before any of their code runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from tokendraw.backends.description import is_name
from tokendraw.backends.resolution.candidate import Candidate, Choice, State
from tokendraw.errors import all_of

FIRST_PARTY: Mapping[str, str] = {
    "native": "tokendraw-native",
    "cpu": "tokendraw-cpu",
    "flashinfer": "tokendraw-flashinfer",
    "aiter": "tokendraw-aiter",
    "triton-gumbel": "tokendraw-triton-gumbel",
    "ops-torch": "tokendraw-engine-ops",
    "ops-triton": "tokendraw-engine-ops",
    "ops-flashinfer": "tokendraw-engine-ops",
}
"""Reserved names, each with the one distribution that may claim it."""

FIRST_PARTY_OPERATIONS: Mapping[str, str] = {
    "plan_paged_kv": "tokendraw-engine-ops",
    "pack_sm90_w4": "tokendraw-engine-ops",
}
"""Reserved names of operations outside the core, each with the distribution that brings it."""


def is_first_party(name: str, distribution: str) -> bool:
    return FIRST_PARTY.get(name) == canonicalize_name(distribution)


def author_of(name: str) -> str:
    return "tokendraw's maintainers" if name in FIRST_PARTY else "its author"


def admit(candidates: Iterable[Candidate], choice: Choice) -> tuple[Candidate, ...]:
    """Mark candidates that may not run as disabled or broken."""
    marked = [_marked(candidate, choice) for candidate in candidates]
    owners = {name: claimants(rivals) for name, rivals in conflicts(marked).items()}
    return tuple(
        replace(c, state=State.BROKEN, reason=disputed_reason(c.name, owners[c.name]))
        if c.name in owners and _claims(c)
        else c
        for c in marked
    )


def _marked(candidate: Candidate, choice: Choice) -> Candidate:
    if reason := disabled_reason(candidate.name, choice, first_party=candidate.first_party):
        return replace(candidate, state=State.DISABLED, reason=reason)
    if _squats(candidate):
        reason = reserved_reason(candidate.name, FIRST_PARTY[candidate.name], *claimants([candidate]))
        return replace(candidate, state=State.BROKEN, reason=reason)
    return candidate


def conflicts(candidates: Iterable[Candidate]) -> dict[str, tuple[Candidate, ...]]:
    """Find names claimed by two different distributions, each with its claimants.

    Disabled candidates, remains without a distribution's metadata and names that nobody can choose claim nothing. A
    reserved name belongs to its first-party distribution, whoever else asks.
    """
    claims: defaultdict[str, dict[str, Candidate]] = defaultdict(dict)
    for candidate in sorted(candidates, key=lambda c: (c.distribution, c.version)):
        if _claims(candidate):
            claims[candidate.name].setdefault(canonicalize_name(candidate.distribution), candidate)
    return {name: tuple(owners.values()) for name, owners in sorted(claims.items()) if len(owners) > 1}


def claimants(candidates: Iterable[Candidate]) -> list[str]:
    return [f"{c.distribution} {c.version}".rstrip() for c in candidates]


def disabled_reason(name: str, choice: Choice, *, first_party: bool) -> str | None:
    if name in choice.disabled:
        return f"switched off by {choice.disabled_source}"
    if choice.first_party_only and not first_party:
        return "not first-party, and TOKENDRAW_NO_PLUGINS=1 admits no others"
    return None


def reserved_reason(name: str, owner: str, claimant: str) -> str:
    return f"the name {name!r} is reserved for the distribution {owner}, found it in {claimant}; rename the entry point"


def disputed_reason(name: str, owners: Sequence[str]) -> str:
    surplus = "one" if len(owners) == 2 else "all but one"
    return f"the name {name!r} is claimed by {all_of(owners)}; uninstall {surplus} of them"


def _claims(candidate: Candidate) -> bool:
    is_found = bool(candidate.distribution) and candidate.state is not State.DISABLED
    return is_found and is_name(candidate.name) and not _squats(candidate)


def _squats(candidate: Candidate) -> bool:
    """Whether another distribution claims a reserved name. A candidate made by hand has no distribution."""
    is_reserved = candidate.name in FIRST_PARTY and bool(candidate.distribution)
    return is_reserved and not is_first_party(candidate.name, candidate.distribution)
