"""Rewrites messages of the library for the command line: they name options in place of arguments."""

from __future__ import annotations

import re

import click

_OPTION_OF_ARGUMENT = {"positions": "position", "filter_orders": "filter_order"}
"""Maps arguments of the library to options with other names."""


def in_options(text: str, command: click.Command) -> str:
    """Write ``text`` with the options of ``command`` where it names arguments.

    ``'top_p' of row 0`` becomes ``'--top-p'``, ``device='cpu'`` becomes ``--device cpu``. A command has one value for
    all rows, so the row goes, except that of a position. Arguments that the command has no option for stay.
    """
    options = {str(param.name): param.opts[0] for param in command.params if isinstance(param, click.Option)}
    for argument, name in _OPTION_OF_ARGUMENT.items():
        if argument not in options and name in options:
            options[argument] = options[name]
    if not options:
        return text
    names = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    text = re.sub(
        rf"^'({names})'( of row \d+)?",  # further on it may be a key of the configuration file
        lambda found: f"'{options[found[1]]}'{found[2] or '' if found[1] == 'positions' else ''}",
        text,
    )
    text = text.replace(" or None, found", ", found")  # an option is left out instead
    return re.sub(
        rf"\b({names})=(?:'([^']*)')?",
        lambda found: options[found[1]] + (f" {found[2]}" if found[2] is not None else ""),
        text,
    )
