"""The command ``tokendraw``: a group of built-in commands and of commands from other distributions.

Others name theirs in the entry point group ``tokendraw.commands``. Names come from metadata alone: the module of a
command is imported at its call, by ``--help`` and by ``doctor``. One that cannot be used has a reason in words.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
import importlib_metadata
from packaging.utils import canonicalize_name

from tokendraw._version import __version__
from tokendraw.backends.discovery import guard
from tokendraw.backends.discovery.entry_points import declarations
from tokendraw.backends.discovery.guard import guarded
from tokendraw.backends.resolution.candidate import Extension, disputed_reason, reserved_reason
from tokendraw.cli.terminal import (
    GuardedCommand,
    ended_by_exit_code,
    interrupts_end_imports,
    loads_are_watched,
    plugins_at_work,
    prepare_streams,
)
from tokendraw.errors import PluginError, TokendrawError, how_to_install, type_name

ENTRY_POINT_GROUP = "tokendraw.commands"
BUILT_IN: Mapping[str, str] = {
    "list": "negotiation:list_",
    "show": "negotiation:show",
    "resolve": "negotiation:resolve",
    "doctor": "doctor:doctor",
    "sample": "drawing:sample",
    "generate": "drawing:generate",
}
OWNERS: Mapping[str, str] = {
    "check": "tokendraw-testing",
    "new": "tokendraw-testing",
    "bench": "tokendraw-bench",
}
"""Commands of tokendraw's other distributions, each with the distribution that owns the name."""


class InstalledCommand(Extension):
    """A command declared by an entry point; where its reason is None, nothing is known against it."""

    @property
    def owner(self) -> str:
        return f"{self.distribution} {self.version}".strip()

    @property
    def is_callable(self) -> bool:
        """Whether ``tokendraw NAME`` calls this command, usable or not; false for a reserved name."""
        return self.name not in BUILT_IN and not (self.name in OWNERS and self.is_foreign)

    @property
    def is_foreign(self) -> bool:
        return OWNERS.get(self.name) != canonicalize_name(self.distribution)


def installed_commands() -> tuple[InstalledCommand, ...]:
    """List every entry point of the group, sorted by name, with none of their code run."""
    found = sorted(declarations(ENTRY_POINT_GROUP), key=lambda each: (each.name, each.distribution))
    commands = [InstalledCommand(**vars(declaration)) for declaration in found]
    claimants = defaultdict[str, list[str]](list)
    for command in commands:
        if command.reason is None and command.is_callable:
            claimants[command.name].append(command.owner)

    def refusal(command: InstalledCommand) -> str | None:
        if not command.is_callable:
            return reserved_reason(command.name, OWNERS.get(command.name, "tokendraw"), command.owner)
        owners = claimants[command.name]
        return disputed_reason(command.name, owners) if len(owners) > 1 else None

    return tuple(replace(each, reason=each.reason or refusal(each)) for each in commands)


def load(command: InstalledCommand) -> click.Command:
    """Import a command.

    :raises PluginError: it cannot be used; the reason in words.
    """
    if command.reason is not None:
        raise PluginError(command.reason)
    value = command.entry_point
    entry_point = importlib_metadata.EntryPoint(command.name, value, ENTRY_POINT_GROUP)
    advice = f"Uninstall {command.distribution} to do without it."
    watched = guard.watched(command.name, advice) if command.is_foreign else contextlib.nullcontext()
    with plugins_at_work(), watched:
        loaded = guarded(f"loading {value!r}", entry_point.load, value.partition(".")[0].partition(":")[0])
    if not isinstance(loaded, click.Command):
        raise PluginError(f"{value!r} needs to be a click command, found {type_name(loaded)}")
    return loaded


def examined(command: InstalledCommand) -> InstalledCommand:
    try:
        load(command)
    except PluginError as error:
        return replace(command, reason=str(error))
    return command


_ORDER = ("list", "show", "resolve", "doctor", "check", "bench", "sample", "generate", "new")
"""Order of tokendraw's own commands in ``--help``; third-party commands follow by name."""
_INSTALLED = "tokendraw.installed_commands"
_AS_JSON = "tokendraw.as_json"


class _Commands(click.Group):
    """A group that imports a command at its first call, and prints every error for all of them."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with interrupts_end_imports(), loads_are_watched():
            prepare_streams()
            return super().main(*args, **kwargs)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        as_json = any(arg.partition("=")[0] == "--json" for arg in args)
        with ended_by_exit_code(as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_AS_JSON] = as_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        with ended_by_exit_code(ctx.meta[_AS_JSON]):
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (command.name for command in _installed(ctx) if command.is_callable)
        return list(dict.fromkeys((*_ORDER, *names)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in BUILT_IN:
            if cmd_name not in self.commands:
                self.add_command(pkgutil.resolve_name(f"tokendraw.cli.{BUILT_IN[cmd_name]}"))
            return self.commands[cmd_name]
        for command in _installed(ctx):
            if command.name == cmd_name and command.is_callable:
                try:
                    return load(command)
                except PluginError as error:
                    return _stand_in(cmd_name, f"{cmd_name!r} of {command.owner} cannot be used: {error}.")
        if owner := OWNERS.get(cmd_name):
            need = f"needs the distribution {owner}, which is not installed"
            message = f"{cmd_name!r} {need}; run {how_to_install(owner)}."
            return _stand_in(cmd_name, message, f"Needs {owner}, which is not installed.")
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


def _installed(ctx: click.Context) -> tuple[InstalledCommand, ...]:
    if _INSTALLED not in ctx.meta:
        ctx.meta[_INSTALLED] = installed_commands()
    commands: tuple[InstalledCommand, ...] = ctx.meta[_INSTALLED]
    return commands


def _stand_in(name: str, message: str, summary: str = "") -> click.Command:
    """Make a command that refuses all arguments with a message."""

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
