"""Mutants: a table of planted bugs, and of the kit's lines that have to see each bug.

``families()`` returns all mutants by family. ``python -m mutants.report`` runs all and writes their totals into
docs/numbers.md.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import tokendraw
from tokendraw_testing import Status, Subject, cases, run
from tokendraw_testing.cases import allow_every_case, covering

_MODULES = (
    "samplers",
    "ceilings",
    "verifiers",
    "scorers",
    "processors",
    "races",
    "sample_corners",
    "verify_corners",
)


_TABLES = {}


@contextlib.contextmanager
def shared_tables():
    """Cache tables by factors and generator state, so that later random numbers stay equal."""
    with contextlib.ExitStack() as stack:
        for module in (cases, cases.rows):
            stack.enter_context(mock.patch.object(module, "covering", _cached(module.__name__)))
        yield


def _cached(module_name):
    def made(factors, rng, allowed=allow_every_case):
        key = module_name, repr(factors), repr(rng.bit_generator.state)
        if key not in _TABLES:
            _TABLES[key] = covering(factors, rng, allowed), rng.bit_generator.state
        table, rng.bit_generator.state = _TABLES[key]
        return table

    return made


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A plugin with a planted bug.

    :ivar name: what goes wrong, in words; unique among all mutants.
    :ivar operation: the operation whose lines see the bug.
    :ivar lines: the lines of the kit, all of which have to turn red.
    :ivar build: makes the plugin's object from a need and a device.
    :ivar capabilities: what the plugin advertises, by operation.
    :ivar reason: why no line sees the bug, where ``lines`` is empty.
    """

    name: str
    operation: str
    lines: tuple[str, ...] = ()
    build: Callable[[tokendraw.Need, str], Any] = field(repr=False)
    capabilities: dict[str, Any] = field(repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    device: str = "cpu"
    reason: str = ""

    def subject(self, **options: Any) -> Subject:
        """Return the plugin as the kit takes it."""
        options = {"capabilities": self.capabilities, "device": self.device} | self.options | options
        device = options["device"]
        return Subject(self.name, build=lambda operation, need: self.build(need, device), **options)

    def look(self, *lines: str, **options: Any) -> list[Any]:
        """Run lines of the kit on the plugin, by default ``lines``."""
        with shared_tables():
            return list(
                run(self.subject(**options), only=lines or self.lines, operation=self.operation).lines
            )

    def is_seen(self, lines: list[Any]) -> bool:
        """Whether all lines are red for the bug, and not by a slip of this suite."""
        return {line.name for line in lines} == {*self.lines} and all(
            line.status is Status.FAILED and "a call raised" not in line.detail for line in lines
        )


def table(
    operation: str, capabilities: Any, base: type, rows: tuple[tuple[Any, ...], ...], **options: Any
) -> tuple[Mutant, ...]:
    """Make mutants from rows ``(name, lines, methods)``: subclasses of ``base`` with replaced methods.

    :param base: the native object with hooks, made from a need and a device.
    """
    return tuple(
        Mutant(
            name=name,
            operation=operation,
            lines=(lines,) if isinstance(lines, str) else lines,
            build=type(base.__name__, (base,), methods),
            capabilities={operation: capabilities},
            **options,
        )
        for name, lines, methods in rows
    )


def subject_of(operation: str, capabilities: Any, backend: Callable[[], Any], **options: Any) -> Subject:
    """Return a backend class of a test as a subject of the kit."""
    name = getattr(backend, "__name__", "acme")
    options = {"capabilities": {operation: capabilities}, "device": "cpu"} | options
    return Subject(name, build=lambda operation, need: backend(), **options)


def families() -> dict[str, tuple[Mutant, ...]]:
    """Return all mutants by family."""
    modules = [importlib.import_module(f"mutants.{name}") for name in _MODULES]
    return {family: rows for module in modules for family, rows in module.MUTANTS.items()}


def by_name(rows: tuple[Mutant, ...]) -> dict[str, Mutant]:
    """Return mutants by their names."""
    return {mutant.name: mutant for mutant in rows}
