"""The face for authors of commands: options, output and exit codes in the style of ``tokendraw``.

A command is a click command that a distribution names in the entry point group ``tokendraw.commands``::

    # pyproject.toml
    #   [project.entry-points."tokendraw.commands"]
    #   states = "acme_tools:states"

    from collections import Counter

    import click

    import tokendraw
    from tokendraw.commands import GuardedCommand, json_option, plugins_at_work, print_json, print_table

    @click.command(cls=GuardedCommand, short_help="How many plugins are in which state.")
    @json_option
    def states(as_json: bool) -> None:
        \"\"\"Count the installed plugins by their state.\"\"\"
        with plugins_at_work():
            counts = Counter(str(candidate.state) for candidate in tokendraw.discover())
        if as_json:
            print_json({"states": counts})
        else:
            print_table(("state", "plugins"), [(state, str(count)) for state, count in counts.items()])

The module is imported when the command is called or listed by ``tokendraw --help``: torch is imported in the function.
A command that fails to load is listed there and by ``tokendraw doctor`` with its reason. The names of tokendraw's own
commands are reserved.
"""

from __future__ import annotations

from tokendraw.cli.command import NOT_USABLE, USAGE, GuardedCommand, warn
from tokendraw.cli.describe import candidate_json, host_json
from tokendraw.cli.installed_commands import ENTRY_POINT_GROUP
from tokendraw.cli.options import (
    all_of_options,
    build_operation_option,
    device_option,
    installed_names,
    json_option,
    verbose_option,
)
from tokendraw.cli.terminal.tables import (
    PIPE_WIDTH,
    console_width,
    plugins_at_work,
    print_json,
    print_lines,
    print_table,
    progress,
    progress_bar,
)

__all__ = [
    "ENTRY_POINT_GROUP",
    "NOT_USABLE",
    "PIPE_WIDTH",
    "USAGE",
    "GuardedCommand",
    "all_of_options",
    "build_operation_option",
    "candidate_json",
    "console_width",
    "device_option",
    "host_json",
    "installed_names",
    "json_option",
    "plugins_at_work",
    "print_json",
    "print_lines",
    "print_table",
    "progress",
    "progress_bar",
    "verbose_option",
    "warn",
]
