"""Which of two candidates goes first, whatever they can do."""

from __future__ import annotations

from typing import TypeAlias

from tokendraw._resolution.candidate import Candidate, Choice

Rank: TypeAlias = tuple[int, int, str, str, str]


def place(candidate: Candidate, choice: Choice) -> int:
    """Where it stands in the user's order, from 0; all that are not named there stand behind."""
    order = choice.priority
    return order.index(candidate.name) if candidate.name in order else len(order)


def rank(candidate: Candidate, choice: Choice) -> Rank:
    """The user's order, then the higher priority, then the name; the rest only keeps equals in one order."""
    return (
        place(candidate, choice),
        -candidate.priority,
        candidate.name,
        candidate.distribution,
        candidate.entry_point,
    )
