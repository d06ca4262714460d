"""``tokendraw list``: every installed plugin with its state, reason and operations, what others bring, and filters.

JSON: ``candidates``, each as in :func:`tokendraw.cli.describe.candidate_json`; ``filters``, each with the fields of
:class:`tokendraw.filters.InstalledFilter`; ``operations``, each with those but ``moments`` and ``summary``.
"""

from __future__ import annotations

from dataclasses import asdict

import click

import tokendraw
from tokendraw import operations
from tokendraw.backends.discovery import settings as _settings
from tokendraw.backends.resolution.candidate import State
from tokendraw.backends.resolution.messages import INSTALL
from tokendraw.cli import options
from tokendraw.cli.command import NOT_USABLE, GuardedCommand, warn
from tokendraw.cli.describe import CANDIDATE_HEADER, candidate_json, candidate_rows, rank
from tokendraw.cli.terminal.tables import plugins_at_work, print_json, print_table
from tokendraw.filters.installed import installed_filters


@click.command("list", cls=GuardedCommand, short_help="Every sampler, and why some cannot serve.")
@options.operation_option
@options.verbose_option
@options.json_option
@click.pass_context
def list_(ctx: click.Context, operation: str, as_json: bool) -> None:
    """Show every installed sampler and its operations, with reasons for those that cannot serve the one asked for.

    Below them are the operations that other distributions bring, and the installed filters from moments.

    Exits with 1 if none is available. Neither torch nor any backend is imported.
    """
    settings = _settings.read_settings()
    with plugins_at_work():
        found = sorted(tokendraw.discover(operation=operation), key=rank)
        filters = [asdict(record) for record in installed_filters()]
        others = [asdict(record) for record in operations.installed_operations()]
    names = [candidate.name for candidate in found]
    warn(settings.all_warnings(names, sampler=True), strict=settings.strict)
    error = None
    if not found:
        error = f"No sampler is installed; {INSTALL}."
    elif all(candidate.state is not State.AVAILABLE for candidate in found):
        error = f"No installed sampler can serve the operation '{operation}' here. Read the reasons of the candidates."
    candidates = [candidate_json(candidate) for candidate in found]
    if as_json:
        print_json({"error": error, "candidates": candidates, "filters": filters, "operations": others})
    elif candidates:
        print_table(CANDIDATE_HEADER, candidate_rows(candidates))
        known = operations.operation_names()  # a plugin may offer others, which come last
        rows = [
            (c["name"], ", ".join(sorted(c["operations"], key=lambda name: [*known, name].index(name))))
            for c in candidates
            if c["operations"] is not None
        ]
        if rows:
            click.echo()
            print_table(("name", "operations"), rows)
        if others:
            click.echo()
            print_table(
                ("operation", "state", "brought by, or why it cannot be used"),
                [(o["name"], o["state"], o["reason"] or o["distribution"]) for o in others],
            )
        if filters:
            click.echo()
            print_table(
                ("filter", "state", "moments", "what it keeps, or why it cannot"),
                [
                    (f["name"], f["state"], ", ".join(f["moments"]), f["reason"] or f["summary"])
                    for f in filters
                ],
            )
    else:
        click.echo(error, err=True)
    if error:
        ctx.exit(NOT_USABLE)
