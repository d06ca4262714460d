"""The command ``tokendraw``: a group of built-in commands and of commands from other distributions."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import click

from tokendraw._version import __version__
from tokendraw.cli.command import GuardedCommand, errors_as_json
from tokendraw.cli.installed_commands import (
    BUILT_IN,
    OWNERS,
    InstalledCommand,
    examined,
    installed_commands,
    load,
    missing_distribution,
)
from tokendraw.cli.terminal import process
from tokendraw.errors.exceptions import PluginError, TokendrawError

_ORDER = ("list", "show", "resolve", "doctor", "check", "bench", "sample", "generate", "new")
"""Order of tokendraw's own commands in ``--help``; third-party commands follow by name."""
_INSTALLED = "tokendraw.installed_commands"
_AS_JSON = "tokendraw.as_json"


class _Commands(click.Group):
    """A group that imports a command at its first call, and prints every error for all of them."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with process.interrupts_end_imports(), process.loads_are_watched():
            process.prepare_streams()
            return super().main(*args, **kwargs)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        as_json = any(arg.partition("=")[0] == "--json" for arg in args)
        with _guarded(as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_AS_JSON] = as_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with _guarded(ctx.meta[_AS_JSON]):
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (command.name for command in _installed(ctx) if command.is_callable)
        return list(dict.fromkeys((*_ORDER, *names)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in BUILT_IN:
            if cmd_name not in self.commands:
                module = importlib.import_module(f"tokendraw.cli.verbs.{cmd_name}")
                self.add_command(getattr(module, BUILT_IN[cmd_name]))
            return self.commands[cmd_name]
        for command in _installed(ctx):
            if command.name == cmd_name and command.is_callable:
                try:
                    return load(command)
                except PluginError as error:
                    return _stand_in(cmd_name, f"{cmd_name!r} of {command.owner} cannot be used: {error}.")
        if cmd_name in OWNERS:
            summary = f"Needs {OWNERS[cmd_name]}, which is not installed."
            return _stand_in(cmd_name, missing_distribution(cmd_name), summary)
        for name in self.list_commands(ctx):  # click looks for the nearest among these
            self.commands.setdefault(name, click.Command(name))
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        commands = map(examined, _installed(ctx))
        rows = [(c.name, f"{c.owner}: {c.reason}") for c in commands if c.reason is not None]
        if rows:
            with formatter.section("Commands that cannot be used"):
                formatter.write_dl(rows)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Turn logits into tokens with the best sampler that is installed, and say why.

    Exit codes: 0 fine, 1 not usable, 2 usage error.
    """,
)
@click.version_option(__version__, prog_name="tokendraw")
def main() -> None:
    """Run the command that is named."""


@contextlib.contextmanager
def _guarded(as_json: bool) -> Iterator[None]:
    with process.ended_by_exit_code(), errors_as_json(as_json):
        yield


def _installed(ctx: click.Context) -> tuple[InstalledCommand, ...]:
    """List the installed commands, once in a run of the main command."""
    if _INSTALLED not in ctx.meta:
        ctx.meta[_INSTALLED] = installed_commands()
    commands: tuple[InstalledCommand, ...] = ctx.meta[_INSTALLED]
    return commands


def _stand_in(name: str, message: str, summary: str = "") -> click.Command:
    """Make a command that fails with a message, whatever its arguments.

    :param summary: the line in ``--help``; "" leaves the command out of the list.
    """

    def refuse(arguments: tuple[str, ...]) -> None:
        raise TokendrawError(message)

    return GuardedCommand(
        name,
        help=message,
        short_help=summary,
        hidden=not summary,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        callback=refuse,
    )
