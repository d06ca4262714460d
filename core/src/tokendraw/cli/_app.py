"""The command that holds the others, and what happens when one of them fails.

Exit codes: 0 fine; 1 not usable (no sampler, a file without logits, an explicit choice that cannot be
honoured); 2 usage (options, parameters outside their range, malformed settings); 130 interrupted; 141 the
reader of a pipe left.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import click

from tokendraw._errors import InvalidParameterError, SettingsError, TokendrawError, TokendrawWarning
from tokendraw._version import __version__

NOT_USABLE = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE, what a shell shows for programs that the signal ends


class GuardedCommand(click.Command):
    """A command whose errors are sentences on stderr and an exit code, not tracebacks."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                _never_fail_to_encode()
                result = super().invoke(ctx)
                sys.stdout.flush()  # here, where a closed pipe is caught, and not at the interpreter's exit
                return result
        except (InvalidParameterError, SettingsError) as error:
            click.echo(str(error), err=True)
            ctx.exit(USAGE)
        except (TokendrawError, TokendrawWarning) as error:
            click.echo(str(error), err=True)
            ctx.exit(NOT_USABLE)
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _discard_stdout()
            ctx.exit(PIPE_CLOSED)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of a first visit, not of the alphabet


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="tokendraw")
def main() -> None:
    """Turn logits into tokens with the best sampler that is installed, and say why.

    Exit codes: 0 fine, 1 not usable, 2 usage error.
    """


def warn(messages: Iterable[str], *, strict: bool) -> None:
    """Say on stderr what :func:`tokendraw.load_sampler` would warn of.

    :param strict: raise instead, as that does under ``TOKENDRAW_STRICT=1``.
    """
    for message in messages:
        if strict:
            raise TokendrawError(message)
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


def _never_fail_to_encode() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    """Drop what is buffered for a closed pipe: it would raise again at the interpreter's exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
