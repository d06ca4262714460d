"""Prints the rows checked by each line: a letter for each kind of row, by dtype and width of the vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import click

from tokendraw.commands import console_width

if TYPE_CHECKING:
    from tokendraw_testing.kit.report import Looked, Place

_UNCOVERED = "."
_LABEL = "ids in the vocabulary, up to"


def print_matrix(lines: Sequence[tuple[str, Looked]], places: Sequence[Place]) -> None:
    """Print a table for each call, with a row for each line and a row for the sum of the lines.

    :param places: those that lines could look at.
    """
    for call in dict.fromkeys(place.call for place in places):
        call_places = [place for place in places if place.call == call]
        places_by_line = [
            (name, {place for place, _ in places_by_line if place.call == call})
            for name, places_by_line in lines
        ]
        _print_call(
            call,
            call_places,
            [(name, covered_places) for name, covered_places in places_by_line if covered_places],
        )


def _print_call(call: str, places: Sequence[Place], lines: Sequence[tuple[str, set[Place]]]) -> None:
    union = set().union(*(covered_places for _, covered_places in lines))
    count = sum(place in union for place in places)
    legend = ", ".join(f"{kind[0]} {kind}" for kind in dict.fromkeys(place.kind for place in places))
    click.echo()
    click.echo(
        f"{click.style(call, bold=True)}: rows looked at in {count or 'none'} of {len(places)} places ({legend})"
    )
    if not lines:
        return
    rows = [*lines, ("any line", union)] if len(lines) > 1 else lines
    label = max(len(name) for name in (_LABEL, *(name for name, _ in rows)))
    dtypes = list(dict.fromkeys(place.dtype for place in places))
    blocks = {dtype: _block([place for place in places if place.dtype == dtype], rows) for dtype in dtypes}
    blocks_per_line = max(1, (console_width() - label) // (2 + len(blocks[dtypes[0]][0])))
    for start in range(0, len(dtypes), blocks_per_line):
        names = ["", _LABEL, *(name for name, _ in rows)]
        for i, name in enumerate(names):
            cells = (blocks[dtype][i] for dtype in dtypes[start : start + blocks_per_line])
            click.echo("  ".join([f"{name:{label}}", *cells]).rstrip())


def _block(places: Sequence[Place], rows: Sequence[tuple[str, Collection[Place]]]) -> list[str]:
    """Write the columns of one dtype: heading, widths, and the cells of each row."""
    widths = list(dict.fromkeys(place.up_to for place in places))
    heads = ["more" if width is None else f"{width >> 10}K" for width in widths]
    cells = [[_cell(places, covered_places, width) for width in widths] for _, covered_places in rows]
    columns = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [
        "  ".join(f"{cell:{size}}" for cell, size in zip(line, columns, strict=True))
        for line in (heads, *cells)
    ]
    return [f"{places[0].dtype:{len(lines[0])}}", *lines]


def _cell(places: Sequence[Place], covered_places: Collection[Place], width: int | None) -> str:
    row = [place for place in places if place.up_to == width]
    return "".join(place.kind[0] if place in covered_places else _UNCOVERED for place in row)
