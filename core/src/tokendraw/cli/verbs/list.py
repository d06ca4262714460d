"""``tokendraw list``: every installed plugin with its state, its reason and its operations.

JSON: ``candidates``, each as in :func:`tokendraw.cli.describe.candidate_json`.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

import tokendraw
from tokendraw import operations
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.resolution.candidate import Candidate, State
from tokendraw.backends.resolution.refusals import INSTALL
from tokendraw.cli.candidates import by_rank, print_candidates
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
    """Write the error if no candidate can serve the operation; None if a candidate can."""
    if not candidates:
        return f"No sampler is installed; {INSTALL}."
    if any(candidate.state is State.AVAILABLE for candidate in candidates):
        return None
    return f"No installed sampler can serve the operation '{operation}' here. Read the reasons of the candidates."


def _print_operations(candidates: Sequence[Candidate]) -> None:
    """Print the operations of each plugin, in the order of the registry."""
    order = {name: index for index, name in enumerate(operations.FOLDERS)}
    rows = [
        (c.name, ", ".join(sorted(info.operations, key=lambda name: (order.get(name, len(order)), name))))
        for c in candidates
        if (info := described(c)) is not None
    ]
    if rows:
        click.echo()
        print_table(("name", "operations"), rows)
