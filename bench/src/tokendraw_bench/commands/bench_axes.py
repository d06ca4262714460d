"""Options of ``tokendraw bench`` for the axes of every operation, and the cells of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from tokendraw.commands import all_of_options
from tokendraw.tools import one_of
from tokendraw_bench import operations
from tokendraw_bench.cells import Cell, min_vocab_size
from tokendraw_bench.operation import AnyCell, Axis

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _operations_by_axis() -> dict[Axis, list[str]]:
    """Map every axis to the operations with cells along it."""
    operations_by_axis: dict[Axis, list[str]] = {}
    for name in operations.NAMES:
        for axis in operations.get(name).axes:
            operations_by_axis.setdefault(axis, []).append(name)
    return operations_by_axis


def axis_options(command: _Command) -> _Command:
    """Add an option for every axis to a command, under the name of the field; None or () by default."""
    options: list[Callable[[_Command], _Command]] = [_option(axis) for axis in _operations_by_axis()]
    return all_of_options(*options)(command)


def _option(axis: Axis) -> Callable[[_Command], _Command]:
    if axis.is_flag:
        return click.option(axis.option, axis.field, default=None, help=axis.help)
    number = click.FloatRange if axis.is_fraction else click.IntRange
    values: Any = number(min=axis.minimum, max=axis.maximum, min_open=axis.excludes_minimum)
    if axis.choices:
        values = click.Choice(axis.choices)
    elif axis.allows_none:
        values = _number_or_none
    metavar = "INTEGER|none" if axis.allows_none else None
    return click.option(
        axis.option, axis.field, multiple=not axis.single, type=values, help=axis.help, metavar=metavar
    )


def _number_or_none(text: str) -> int | None:
    """Read a whole number of 0 or more, or ``none``."""
    if text != "none" and not text.isdecimal():
        raise ValueError(text)
    return None if text == "none" else int(text)


def cells_of_options(operation: str, preset: str, axis_values: Mapping[str, Any]) -> tuple[AnyCell, ...]:
    """List the cells of a preset, with values of options in place of the preset's.

    :param axis_values: values of every axis by field, as the options have them.
    :raises click.UsageError: an axis of another operation was given, or a vocabulary without room for a family.
    """
    values: dict[str, tuple[Any, ...]] = {}
    for axis, names in _operations_by_axis().items():
        option = axis_values[axis.field]
        choices = option if isinstance(option, tuple) else () if option is None else (option,)
        if choices and operation not in names:
            raise click.UsageError(
                f"'{axis.option_of(choices[0])}' is about {axis.subject}. Add --op {one_of(names)}, or leave it out."
            )
        if operation in names:
            values[axis.field] = choices
    cells = operations.get(operation).grid(preset, **values)
    for cell in cells:
        if isinstance(cell, Cell) and cell.vocab_size < min_vocab_size(cell.family):
            raise click.UsageError(
                f"{cell.family} needs a vocabulary of {min_vocab_size(cell.family)} or more, "
                f"found {cell.vocab_size}."
            )
    return cells
