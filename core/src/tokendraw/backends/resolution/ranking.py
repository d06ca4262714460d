"""Ranks candidates, whatever they can do."""

from __future__ import annotations

from typing import TypeAlias

from tokendraw.backends.resolution.candidate import Candidate, Choice

Rank: TypeAlias = tuple[int, int, str, str, str]


def place(candidate: Candidate, choice: Choice) -> int:
    """Return its index in the user's order; candidates that are not named there come last."""
    order = choice.priority
    return order.index(candidate.name) if candidate.name in order else len(order)


def rank(candidate: Candidate, choice: Choice) -> Rank:
    """Order by the user's list, then by higher priority, then by name; the rest makes the order of equals stable."""
    return (
        place(candidate, choice),
        -candidate.priority,
        candidate.name,
        candidate.distribution,
        candidate.entry_point,
    )
