"""Rewrites messages of the library for the command line, with options in place of arguments."""

from __future__ import annotations

import re

import click

_OPTION_OF_ARGUMENT = {"positions": "position", "filter_orders": "filter_order"}
"""Maps arguments of the library to options with other names."""


def in_options(text: str, command: click.Command) -> str:
    """Replace the names of arguments in ``text`` by the options of ``command``.

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
        lambda match: f"'{options[match[1]]}'{match[2] or '' if match[1] == 'positions' else ''}",
        text,
    )
    text = text.replace(" or None, found", ", found")  # an option is left out instead
    return re.sub(
        rf"\b({names})=(?:'([^']*)')?",
        lambda match: options[match[1]] + (f" {match[2]}" if match[2] is not None else ""),
        text,
    )
