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

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw.cli.app import ENTRY_POINT_GROUP as ENTRY_POINT_GROUP
    from tokendraw.cli.negotiation import candidate_json as candidate_json
    from tokendraw.cli.negotiation import host_json as host_json
    from tokendraw.cli.options import all_of_options as all_of_options
    from tokendraw.cli.options import build_operation_option as build_operation_option
    from tokendraw.cli.options import device_option as device_option
    from tokendraw.cli.options import installed_names as installed_names
    from tokendraw.cli.options import json_option as json_option
    from tokendraw.cli.options import removed_option as removed_option
    from tokendraw.cli.options import verbose_option as verbose_option
    from tokendraw.cli.terminal import NOT_USABLE as NOT_USABLE
    from tokendraw.cli.terminal import PIPE_WIDTH as PIPE_WIDTH
    from tokendraw.cli.terminal import USAGE as USAGE
    from tokendraw.cli.terminal import GuardedCommand as GuardedCommand
    from tokendraw.cli.terminal import command_line as command_line
    from tokendraw.cli.terminal import console_width as console_width
    from tokendraw.cli.terminal import plugins_at_work as plugins_at_work
    from tokendraw.cli.terminal import print_json as print_json
    from tokendraw.cli.terminal import print_lines as print_lines
    from tokendraw.cli.terminal import print_table as print_table
    from tokendraw.cli.terminal import progress as progress
    from tokendraw.cli.terminal import progress_bar as progress_bar
    from tokendraw.cli.terminal import warn as warn
    from tokendraw.html_pages import html_option as html_option

__getattr__, __dir__ = lazy_names(__name__)
