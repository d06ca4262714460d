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
        if name in options:
            options.setdefault(argument, options[name])
    leading = re.match(r"'(\w+)'( of row \d+)?", text)  # further on it may be a key of the configuration file
    if leading and leading[1] in options:
        row = leading[2] if leading[1] == "positions" else None
        text = f"'{options[leading[1]]}'{row or ''}{text[leading.end() :]}"
    text = text.replace(" or None, found", ", found")  # an option is left out instead

    def as_option(argument: re.Match[str]) -> str:
        option, value = options.get(argument[1]), argument[2]
        return argument[0] if option is None else option if value is None else f"{option} {value}"

    return re.sub(r"\b(\w+)=(?:'([^']*)')?", as_option, text)
