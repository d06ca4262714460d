"""Commands with errors as a sentence and an exit code.

Exit codes: 0 fine; 1 not usable (no sampler, a file without logits, an explicit choice that cannot be
honoured); 2 usage (options, parameters outside their range, malformed settings); 130 interrupted; 141 the
reader of a pipe left.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from tokendraw.cli.option_names import in_options
from tokendraw.cli.terminal import process
from tokendraw.cli.terminal.tables import has_printed_json, print_json
from tokendraw.cli.terminal.verbose import show_cause
from tokendraw.errors.exceptions import InvalidParameterError, SettingsError, TokendrawError, TokendrawWarning
from tokendraw.errors.notices import as_error

NOT_USABLE = 1
USAGE = 2


class GuardedCommand(click.Command):
    """Command that reports errors as a sentence on stderr and an exit code, not as tracebacks.

    With ``--json`` stdout gets the sentence as well, as ``error`` of a JSON object.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; with ``--json`` among them a usage error is printed as JSON."""
        with errors_as_json(has_json_option(args)):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and report an error of tokendraw as a sentence."""
        as_json = ctx.params.get("as_json", False)
        with errors_as_json(as_json):
            try:
                with warnings.catch_warnings():
                    warnings.showwarning = _show_warning
                    return super().invoke(ctx)
            except (TokendrawError, TokendrawWarning) as error:
                if process.was_interrupted(error):
                    raise KeyboardInterrupt from None
                show_cause(ctx, error)
                of_options = not isinstance(error, SettingsError)  # which is about variables and a file
                message = in_options(str(error), self) if of_options else str(error)
                click.echo(message, err=True)
                if as_json:
                    _print_error(message)
                ctx.exit(USAGE if isinstance(error, (InvalidParameterError, SettingsError)) else NOT_USABLE)


def has_json_option(args: Sequence[str]) -> bool:
    """Tell whether ``--json`` is among the arguments, before click parses them."""
    return any(arg.partition("=")[0] == "--json" for arg in args)


@contextlib.contextmanager
def errors_as_json(as_json: bool) -> Iterator[None]:
    """With ``--json`` print an error as a JSON object, and raise it again."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if as_json and not process.was_interrupted(error):
            _print_error(
                error.format_message()
                if isinstance(error, click.ClickException)
                else f"{type(error).__name__}: {error}"
            )
        raise


def _print_error(message: str) -> None:
    """Print an error as a JSON object, unless the command has printed an object already."""
    if not has_printed_json():
        print_json({"error": message})


def warn(messages: Iterable[str], *, strict: bool, outcome: str = "") -> None:
    """Print the warnings of :func:`tokendraw.load_sampler` on stderr.

    :param strict: raise the first instead, as :func:`tokendraw.load_sampler` does under ``TOKENDRAW_STRICT=1``.
    :param outcome: as of :func:`tokendraw.errors.notices.as_error`.
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
    file: Any = None,
    line: str | None = None,
) -> None:
    text = str(message)
    if not issubclass(category, TokendrawWarning):  # not ours: where it comes from helps
        text = warnings.formatwarning(text, category, filename, lineno, line).rstrip()
    click.echo(text, err=True)
