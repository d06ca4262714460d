"""The options of ``tokendraw bench`` for the axes of every operation, and the cells that they choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from tokendraw.commands import all_of_options
from tokendraw.tools import one_of
from tokendraw_bench import operations
from tokendraw_bench.cells import Cell, least_vocab_size
from tokendraw_bench.operation import AnyCell, Axis

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _operations_by_axis() -> dict[Axis, list[str]]:
    """List every axis once, with the operations whose cells have it."""
    found: dict[Axis, list[str]] = {}
    for name in operations.names():
        for axis in operations.get(name).axes:
            found.setdefault(axis, []).append(name)
    return found


def axis_options(command: _Command) -> _Command:
    """Give a command an option for every axis, under the name of its field; None, or no values, if it is not given."""
    options: list[Callable[[_Command], _Command]] = [_option(axis) for axis in _operations_by_axis()]
    return all_of_options(*options)(command)


def _option(axis: Axis) -> Callable[[_Command], _Command]:
    if axis.is_flag:
        return click.option(axis.option, axis.field, default=None, help=axis.help)
    values = click.Choice(axis.choices) if axis.choices else click.IntRange(min=axis.least)
    return click.option(axis.option, axis.field, multiple=not axis.single, type=values, help=axis.help)


def chosen_cells(operation: str, preset: str, given: Mapping[str, Any]) -> tuple[AnyCell, ...]:
    """List the cells of a preset, with the values that were given in the place of its own.

    :param given: values of every axis by field, as the options have them.
    :raises click.UsageError: an axis of another operation was given, or a vocabulary without room for a family.
    """
    values: dict[str, tuple[Any, ...]] = {}
    for axis, names in _operations_by_axis().items():
        found = given[axis.field]
        found = found if isinstance(found, tuple) else () if found is None else (found,)
        if found and operation not in names:
            raise click.UsageError(
                f"'{axis.option_of(found[0])}' is about {axis.about}. Add --op {one_of(names)}, or leave it out."
            )
        if operation in names:
            values[axis.field] = found
    cells = operations.get(operation).grid(preset, **values)
    for cell in cells:
        if isinstance(cell, Cell) and cell.vocab_size < least_vocab_size(cell.family):
            raise click.UsageError(
                f"{cell.family} needs a vocabulary of {least_vocab_size(cell.family)} or more, "
                f"found {cell.vocab_size}."
            )
    return cells
