"""``tokendraw list``: every plugin that is installed, why it can or cannot serve, and which operations it offers.

JSON: ``candidates``, each as in :func:`tokendraw.cli.describe.candidate_json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

import tokendraw
from tokendraw import operations
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.resolution.candidate import Candidate, State
from tokendraw.backends.resolution.refusals import INSTALL
from tokendraw.cli.command import NOT_USABLE, GuardedCommand, warn
from tokendraw.cli.describe import candidate_json, described
from tokendraw.cli.options import json_option, operation_option, verbose_option
from tokendraw.cli.terminal.tables import plugins_at_work, print_json, print_table


@click.command("list", cls=GuardedCommand, short_help="Every sampler, and why some cannot serve.")
@operation_option
@verbose_option
@json_option
@click.pass_context
def list_(ctx: click.Context, operation: str, as_json: bool) -> None:
    """Show every installed sampler and its operations, with reasons for those that cannot serve the one asked for.

    Exits with 1 if none is available. Neither torch nor any backend is imported.
    """
    settings = _settings.read_settings()
    with plugins_at_work():
        candidates = by_rank(tokendraw.discover(operation=operation))
    warn(settings.all_warnings(c.name for c in candidates), strict=settings.strict)
    error = _error(candidates, operation)
    if as_json:
        print_json({"error": error, "candidates": [candidate_json(candidate) for candidate in candidates]})
    elif candidates:
        print_candidates(candidates)
        _print_operations(candidates)
    else:
        click.echo(error, err=True)
    if error:
        ctx.exit(NOT_USABLE)


def _error(candidates: Sequence[Candidate], operation: str) -> str | None:
    """Say that no candidate can serve the operation; None if one can."""
    if not candidates:
        return f"No sampler is installed; {INSTALL}."
    if any(candidate.state is State.AVAILABLE for candidate in candidates):
        return None
    return f"No installed sampler can serve the operation '{operation}' here. Read the reasons of the candidates."


def by_rank(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Sort the available ones first, then by priority and name."""
    return sorted(candidates, key=rank)


def rank(candidate: Candidate) -> tuple[bool, int, str]:
    """Key that sorts the available ones first, then by priority and name."""
    return candidate.state is not State.AVAILABLE, -candidate.priority, candidate.name


def print_candidates(candidates: Iterable[Candidate], *, indent: int = 0) -> None:
    """Print a table of candidates, a row each, with every reason in full."""
    rows = [
        (c.name, str(c.state), str(c.priority) if c.info else "", c.version, c.reason or _summary(c))
        for c in candidates
    ]
    print_table(
        ("name", "state", "priority", "version", "what it does, or why it cannot"), rows, indent=indent
    )


def _print_operations(candidates: Iterable[Candidate]) -> None:
    """Print which operations each plugin offers, in the order in which the core lists them."""
    order = {name: place for place, name in enumerate(operations.FOLDERS)}
    rows = [
        (c.name, ", ".join(sorted(info.operations, key=lambda name: (order.get(name, len(order)), name))))
        for c in candidates
        if (info := described(c)) is not None
    ]
    if rows:
        click.echo()
        print_table(("name", "operations"), rows)


def _summary(candidate: Candidate) -> str:
    info = described(candidate)
    return info.summary if info else ""
