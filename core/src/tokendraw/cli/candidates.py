"""Sorts and prints candidates for ``list`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Iterable

from tokendraw.backends.resolution.candidate import Candidate, State
from tokendraw.cli.describe import described
from tokendraw.cli.terminal.tables import print_table


def by_rank(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort candidates by :func:`rank`."""
    return sorted(candidates, key=rank)


def rank(candidate: Candidate) -> tuple[bool, int, str]:
    """Sort key: available candidates first, then by priority and name."""
    return candidate.state is not State.AVAILABLE, -candidate.priority, candidate.name


def print_candidates(candidates: Iterable[Candidate], *, indent: int = 0) -> None:
    """Print a table with a row for each candidate and every reason in full."""
    rows = [
        (c.name, str(c.state), str(c.priority) if c.info else "", c.version, c.reason or _summary(c))
        for c in candidates
    ]
    print_table(
        ("name", "state", "priority", "version", "what it does, or why it cannot"), rows, indent=indent
    )


def _summary(candidate: Candidate) -> str:
    info = described(candidate)
    return info.summary if info else ""
