"""Writes a report as a table, a row for each cell: plain text for a terminal, Markdown for a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tokendraw_bench.operation import Axis
from tokendraw_bench.report.lines import BenchReport, CellResult
from tokendraw_bench.timing.timer import Failure, Timing

_T = TypeVar("_T", int, float)
_NOTABLE_SPREAD = 0.05


class _Column(NamedTuple):
    """A column of the table."""

    title: str
    text: Callable[[CellResult], str]
    """Writes the value of a cell."""
    is_in_words: bool = False
    """Whether the column is flush left."""


def header(report: BenchReport) -> list[str]:
    """List the titles of the columns."""
    return [column.title for column in _columns(report)]


def rows(report: BenchReport) -> list[list[str]]:
    """Return the cells as text."""
    columns = _columns(report)
    return [[column.text(line) for column in columns] for line in report.lines]


def as_text(report: BenchReport) -> list[str]:
    """Write lines without rules; no column is ever cut."""
    columns = _columns(report)
    table = [header(report), *rows(report)]
    widths = [max(map(len, texts)) for texts in zip(*table, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if column.is_in_words else text.rjust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in table
    ]


def as_markdown(report: BenchReport) -> str:
    """Write a file: the command, the machine, the table, the notes."""
    return markdown_page(report.command, report.head, [as_section(report)])


def as_section(report: BenchReport) -> str:
    """Write the table and the notes in Markdown."""
    in_words = {column.title for column in _columns(report) if column.is_in_words}
    table = markdown_table(header(report), rows(report), in_words)
    notes = "\n".join(f"* {note}" for note in report.notes)
    return "\n\n".join(part for part in (table, notes) if part)


def markdown_page(command: str, head: Sequence[str], sections: Sequence[str]) -> str:
    """Write a file: the command, the machine and the method, the sections."""
    return "\n\n".join([f"`{command}`", " ".join(head), *sections]) + "\n"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], in_words: Collection[str]) -> str:
    """Write a table in Markdown; columns with titles ``in_words`` are flush left, numbers flush right."""
    rule = ["---" if title in in_words else "--:" for title in titles]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))


def _columns(report: BenchReport) -> list[_Column]:
    """List the columns: axes, figures of the inputs, the floor, the contenders, and edges of a sweep."""
    columns = [_axis_column(axis) for axis in report.cell_axes if _has_column(axis, report)]
    columns += [
        _figure_column(name) for name in dict.fromkeys(f for line in report.lines for f in line.figures)
    ]
    columns.append(_Column(f"{report.operation.floor.name} us", _floor))
    for name in report.contenders:
        columns += _contender_columns(name, report)
    if any(line.edges is not None for line in report.lines):
        columns.append(_Column("edge", _edges, is_in_words=True))
    return columns


def _has_column(axis: Axis, report: BenchReport) -> bool:
    """Whether an axis has a column: an optional one only where a cell deviates from the default."""
    default = report.operation.cell.__dataclass_fields__[axis.field].default
    return not (axis.optional and all(getattr(line.cell, axis.field) == default for line in report.lines))


def _axis_column(axis: Axis) -> _Column:
    def text(line: CellResult) -> str:
        value = getattr(line.cell, axis.field)
        return "none" if value is None else str(value)

    return _Column(axis.heading, text, is_in_words=bool(axis.choices))


def _figure_column(name: str) -> _Column:
    return _Column(name, lambda line: f"{line.figures[name]:,.0f}" if name in line.figures else "-")


def _floor(line: CellResult) -> str:
    return "-" if isinstance(line.floor, Failure) else _number(line.floor.us) + _spread(line.floor)


def _edges(line: CellResult) -> str:
    return ", ".join(f"{name} {growth:.1f}x" for name, growth in (line.edges or {}).items())


def _contender_columns(name: str, report: BenchReport) -> Iterator[_Column]:
    """Yield the columns of a contender: its time, and what else was measured."""
    yield _Column(f"{name} us", lambda line: _entry(line, line.entries[name]))
    timings = [entry for line in report.lines for entry in line.entries.values() if isinstance(entry, Timing)]
    if any(timing.largest_us is not None for timing in timings):
        yield _Column("largest", lambda line: _largest(line.entries[name]))
    if any(timing.host_us is not None for timing in timings):
        yield _Column("host us", lambda line: _host(line.entries[name], "host_us"))
    if any(timing.least_host_us is not None for timing in timings):
        yield _Column("least host us", lambda line: _host(line.entries[name], "least_host_us"))
    if any(line.memory for line in report.lines):
        yield _Column("extra memory", lambda line: _or_dash(line.memory.get(name), _size))


def _entry(line: CellResult, entry: Timing | Failure) -> str:
    if isinstance(entry, Failure):
        return "-"
    ratio = line.ratio(entry)
    places = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{_number(entry.us)} ({ratio:.{places}f}x){_spread(entry)}"


def _largest(entry: Timing | Failure) -> str:
    """Write the largest time with its ratio to the median."""
    if isinstance(entry, Failure) or entry.largest_us is None:
        return "-"
    return f"{_number(entry.largest_us)} ({entry.largest_us / entry.us:.2f}x)"


def _host(entry: Timing | Failure, field: str) -> str:
    return _or_dash(getattr(entry, field, None), _number)


def _or_dash(value: _T | None, text: Callable[[_T], str]) -> str:
    """Write a value; a dash for None and NaN."""
    return "-" if value is None or value != value else text(value)


def _number(us: float) -> str:
    return f"{us:.1f}" if us < 999.95 else f"{us:,.0f}"


def _spread(timing: Timing) -> str:
    return f" ±{100 * timing.spread:.0f} %" if timing.spread > _NOTABLE_SPREAD else ""


def _size(nbytes: int) -> str:
    for unit, of in (("MB", 10**6), ("KB", 10**3)):
        if nbytes >= of:
            return f"{nbytes / of:,.1f} {unit}"
    return f"{nbytes} B"
