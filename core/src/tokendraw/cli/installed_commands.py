"""Finds commands in other distributions, by the entry point group ``tokendraw.commands``.

Names come from metadata alone: the module of a command is imported at its call, by ``--help`` and by ``doctor``. A
command that cannot be used has a reason in words and affects no other command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import click
import importlib_metadata
from packaging.utils import canonicalize_name

from tokendraw.backends.discovery import guard
from tokendraw.backends.discovery.entry_points import declarations
from tokendraw.backends.discovery.guard import guarded
from tokendraw.backends.resolution.admission import disputed_reason, reserved_reason
from tokendraw.backends.resolution.candidate import Extension
from tokendraw.cli.terminal.tables import plugins_at_work
from tokendraw.errors.exceptions import PluginError
from tokendraw.errors.formatting import how_to_install, type_name

ENTRY_POINT_GROUP = "tokendraw.commands"
BUILT_IN: Mapping[str, str] = {
    "list": "list_",
    "show": "show",
    "resolve": "resolve",
    "doctor": "doctor",
    "sample": "sample",
    "generate": "generate",
}
"""Commands of the core, each with its function in the module of that name."""
OWNERS: Mapping[str, str] = {
    "check": "tokendraw-testing",
    "new": "tokendraw-testing",
    "bench": "tokendraw-bench",
}
"""Commands of tokendraw's other distributions, each with the distribution that owns the name."""


@dataclass(frozen=True)
class InstalledCommand:
    """A command declared by an entry point.

    :ivar name: Name on the command line, fit to print.
    :ivar distribution: Distribution that brings the command.
    :ivar version: Version of the distribution.
    :ivar entry_point: Value of the entry point, ``package.module:object``.
    :ivar reason: Phrase without a full stop: why the command cannot be used. None: nothing is known against it.
    """

    name: str
    distribution: str
    version: str
    entry_point: str
    reason: str | None = None

    @property
    def owner(self) -> str:
        """Distribution and version, as ``acme-tools 1.0``."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def is_callable(self) -> bool:
        """Whether ``tokendraw NAME`` calls this command, usable or not; false for a reserved name."""
        return self.name not in BUILT_IN and not (self.name in OWNERS and self.is_foreign)

    @property
    def is_foreign(self) -> bool:
        """Whether the command comes from a third party."""
        return OWNERS.get(self.name) != canonicalize_name(self.distribution)


def installed_commands() -> tuple[InstalledCommand, ...]:
    """List every entry point of the group, sorted by name, with none of their code run."""
    commands = sorted(map(_command, declarations(ENTRY_POINT_GROUP)), key=lambda c: (c.name, c.owner))
    return tuple(_disputed(command, commands) for command in commands)


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
    """Import a command; a failed import becomes the reason."""
    try:
        load(command)
    except PluginError as error:
        return replace(command, reason=str(error))
    return command


def missing_distribution(name: str) -> str:
    """Say which distribution to install for one of tokendraw's commands."""
    owner = OWNERS[name]
    return f"{name!r} needs the distribution {owner}, which is not installed; run {how_to_install(owner)}."


def _command(declared: Extension) -> InstalledCommand:
    command = InstalledCommand(declared.name, declared.distribution, declared.version, declared.entry_point)
    reason = declared.reason
    if reason is None and not command.is_callable:
        reason = reserved_reason(command.name, OWNERS.get(command.name, "tokendraw"), command.owner)
    return replace(command, reason=reason)


def _disputed(command: InstalledCommand, commands: Sequence[InstalledCommand]) -> InstalledCommand:
    """Refuse every claim if several distributions bring a command of the same name."""
    claimants = [c.owner for c in commands if c.name == command.name and c.reason is None]
    if command.reason is not None or len(claimants) < 2:
        return command
    return replace(command, reason=disputed_reason(command.name, claimants))
