"""Prints which rows lines have looked at: a letter for each kind of row, by dtype and width of the vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import click

from tokendraw.commands import console_width

if TYPE_CHECKING:
    from tokendraw_testing.kit.looked import Looked, Place

_NOT = "."
_LABEL = "ids in the vocabulary, up to"


def print_matrix(lines: Sequence[tuple[str, Looked]], places: Sequence[Place]) -> None:
    """Print a table for each call, with a row for each line that has made it, and the sum of them.

    :param places: those that lines could look at.
    """
    for call in dict.fromkeys(place.call for place in places):
        own = [place for place in places if place.call == call]
        looked = [(name, {place for place, _ in looked if place.call == call}) for name, looked in lines]
        _print_call(call, own, [(name, found) for name, found in looked if found])


def _print_call(call: str, places: Sequence[Place], lines: Sequence[tuple[str, set[Place]]]) -> None:
    seen = set().union(*(found for _, found in lines))
    count = sum(place in seen for place in places)
    legend = ", ".join(f"{kind[0]} {kind}" for kind in dict.fromkeys(place.kind for place in places))
    click.echo()
    click.echo(
        f"{click.style(call, bold=True)}: rows looked at in {count or 'none'} of {len(places)} places ({legend})"
    )
    if not lines:
        return
    rows = [*lines, ("any line", seen)] if len(lines) > 1 else lines
    label = max(len(name) for name in (_LABEL, *(name for name, _ in rows)))
    dtypes = list(dict.fromkeys(place.dtype for place in places))
    blocks = {dtype: _block([place for place in places if place.dtype == dtype], rows) for dtype in dtypes}
    beside = max(1, (console_width() - label) // (2 + len(blocks[dtypes[0]][0])))
    for start in range(0, len(dtypes), beside):
        names = ["", _LABEL, *(name for name, _ in rows)]
        for i, name in enumerate(names):
            cells = (blocks[dtype][i] for dtype in dtypes[start : start + beside])
            click.echo("  ".join([f"{name:{label}}", *cells]).rstrip())


def _block(places: Sequence[Place], rows: Sequence[tuple[str, Collection[Place]]]) -> list[str]:
    """Write the columns of one dtype: its name, the widths, and the cells of each row."""
    widths = list(dict.fromkeys(place.up_to for place in places))
    heads = ["more" if width is None else f"{width >> 10}K" for width in widths]
    cells = [[_cell(places, found, width) for width in widths] for _, found in rows]
    columns = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [
        "  ".join(f"{cell:{size}}" for cell, size in zip(line, columns, strict=True))
        for line in (heads, *cells)
    ]
    return [f"{places[0].dtype:{len(lines[0])}}", *lines]


def _cell(places: Sequence[Place], found: Collection[Place], width: int | None) -> str:
    return "".join(place.kind[0] if place in found else _NOT for place in places if place.up_to == width)
