"""The command ``tokendraw``: a group of built-in commands and of commands from other distributions."""

from __future__ import annotations

import importlib
from typing import Any

import click

from tokendraw._version import __version__
from tokendraw.cli.command import GuardedCommand, errors_as_json, has_json_option
from tokendraw.cli.installed_commands import (
    BUILT_IN,
    OWNERS,
    InstalledCommand,
    installed_commands,
    load,
    missing_distribution,
)
from tokendraw.cli.terminal import process
from tokendraw.errors.exceptions import PluginError, TokendrawError

_ORDER = ("list", "show", "resolve", "doctor", "check", "bench", "sample", "generate", "new")
"""Order of tokendraw's own commands in ``--help``; third-party commands follow by name."""
_INSTALLED = "tokendraw.installed_commands"
_LOADED = "tokendraw.loaded_commands"


class _UnusableCommand(GuardedCommand):
    """Stand-in for a command that cannot run: prints the reason, whatever the arguments.

    :param summary: the line in ``--help``; "" leaves the command out of the list.
    :param reason: reason in the list of unusable commands; None: not listed there.
    """

    def __init__(self, name: str, message: str, *, summary: str = "", reason: str | None = None) -> None:
        super().__init__(
            name,
            help=message,
            short_help=summary,
            hidden=not summary,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            params=[
                click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED),
                click.Option(["--json", "as_json"], is_flag=True, help="One JSON object on stdout."),
            ],
            callback=self._refuse,
        )
        self.message, self.reason = message, reason

    def _refuse(self, **arguments: Any) -> None:
        raise TokendrawError(self.message)


class _Commands(click.Group):
    """A group that imports a command at its first call."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with process.interrupts_end_imports():
            process.open_missing_streams()
            process.never_fail_to_encode()
            return super().main(*args, **kwargs)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with process.ended_by_exit_code(), errors_as_json(has_json_option(args)):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with process.ended_by_exit_code():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        with errors_as_json(has_json_option(args)):
            return super().resolve_command(ctx, args)

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
                return _loaded(ctx, command)
        if cmd_name in OWNERS:
            summary = f"Needs {OWNERS[cmd_name]}, which is not installed."
            return _UnusableCommand(cmd_name, missing_distribution(cmd_name), summary=summary)
        for name in self.list_commands(ctx):  # click looks for the nearest among these
            self.commands.setdefault(name, click.Command(name))
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        rows = [
            (command.name, f"{command.owner}: {reason}")
            for command in _installed(ctx)
            if (reason := _reason_against(ctx, command)) is not None
        ]
        if rows:
            with formatter.section("Commands that cannot be used"):
                formatter.write_dl(rows)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="tokendraw")
def main() -> None:
    """Turn logits into tokens with the best sampler that is installed, and say why.

    Exit codes: 0 fine, 1 not usable, 2 usage error.
    """


def _installed(ctx: click.Context) -> tuple[InstalledCommand, ...]:
    """List the installed commands, once in a run of the main command."""
    commands: tuple[InstalledCommand, ...] | None = ctx.meta.get(_INSTALLED)
    if commands is None:
        commands = ctx.meta[_INSTALLED] = installed_commands()
    return commands


def _loaded(ctx: click.Context, command: InstalledCommand) -> click.Command:
    """Import a command, once in a run; return a stand-in with the reason if the import fails."""
    commands: dict[InstalledCommand, click.Command] = ctx.meta.setdefault(_LOADED, {})
    if command not in commands:
        try:
            commands[command] = load(command)
        except PluginError as error:
            message = f"{command.name!r} of {command.owner} cannot be used: {error}."
            commands[command] = _UnusableCommand(command.name, message, reason=str(error))
    return commands[command]


def _reason_against(ctx: click.Context, command: InstalledCommand) -> str | None:
    """Say why an installed command cannot be used; None if nothing speaks against it."""
    if not command.is_callable:
        return command.reason
    loaded = _loaded(ctx, command)
    return loaded.reason if isinstance(loaded, _UnusableCommand) else None
