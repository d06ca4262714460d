"""Commands with errors as a sentence and an exit code.

Exit codes: 0 fine; 1 not usable (no sampler, a file without logits, an explicit choice that cannot be
honoured); 2 usage (options, parameters outside their range, malformed settings); 130 interrupted; 141 the
reader of a pipe left.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator
from typing import IO, Any, TextIO

import click
from click.core import ParameterSource

from tokendraw.cli.terminal import process
from tokendraw.cli.terminal.tables import has_printed_json, print_json
from tokendraw.errors.exceptions import (
    InvalidParameterError,
    SettingsError,
    TokendrawError,
    TokendrawWarning,
    as_error,
)

NOT_USABLE = 1
USAGE = 2

_OPTION_OF_ARGUMENT = {"positions": "position", "filter_orders": "filter_order"}
"""Maps arguments of the library to options with other names."""

_log = logging.getLogger("tokendraw")


class GuardedCommand(click.Command):
    """Command that reports errors of tokendraw as a sentence on stderr and an exit code, not as tracebacks."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.help = self.help or self.short_help  # without docstrings, as of python -OO

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; raise an error of tokendraw as one that click shows."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except (TokendrawError, TokendrawWarning) as error:
            if error.__cause__ is not None:
                _log.debug("the cause:", exc_info=error.__cause__)  # shown with --verbose
            of_settings = isinstance(error, SettingsError)  # which is about variables and a file, not options
            message = str(error) if of_settings else in_options(str(error), self)
            is_usage = of_settings or isinstance(error, InvalidParameterError)
            raise (_Misused if is_usage else _NotUsable)(message) from error


class _NotUsable(click.ClickException):
    """Error shown as its sentence alone."""

    exit_code = NOT_USABLE

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence on stderr."""
        click.echo(self.message, file, err=True)


class _Misused(_NotUsable):
    exit_code = USAGE


@contextlib.contextmanager
def errors_as_json(as_json: bool) -> Iterator[None]:
    """With ``--json`` print an error as a JSON object, unless the command has printed an object; raise it again."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if as_json and not process.was_interrupted(error) and not has_printed_json():
            unexpected = f"{type(error).__name__}: {error}"
            print_json(
                {"error": error.format_message() if isinstance(error, click.ClickException) else unexpected}
            )
        raise


def warn(messages: Iterable[str], *, strict: bool, outcome: str = "") -> None:
    """Print the warnings of :func:`tokendraw.load_sampler` on stderr.

    :param strict: raise the first instead, as :func:`tokendraw.load_sampler` does under ``TOKENDRAW_STRICT=1``.
    :param outcome: as of :func:`tokendraw.errors.exceptions.as_error`.
    """
    for message in messages:
        if strict:
            raise TokendrawError(as_error(message, outcome))
        click.echo(message, err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = str(message)
    if not issubclass(category, TokendrawWarning):  # not ours: where it comes from helps
        text = warnings.formatwarning(text, category, filename, lineno).rstrip()
    click.echo(text, err=True)


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


def command_line(ctx: click.Context) -> str:
    """Write the command line that repeats a running command."""
    words = ["tokendraw", str(ctx.info_name)]
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in ctx.params or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue  # what is not a parameter, such as --verbose, changes nothing of a run
        value = ctx.params[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        option = parameter.opts[:1] if isinstance(parameter, click.Option) else []
        for item in value if parameter.multiple else (value,):
            words += [*option, "none" if item is None else str(item)]
    return shlex.join(words)
