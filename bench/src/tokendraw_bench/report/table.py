"""Writes a report as a table, a row for each cell: plain text for a terminal, Markdown for a file."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tokendraw_bench.operation import Axis
from tokendraw_bench.report.lines import BEHIND_GATHER, BenchReport, CellResult
from tokendraw_bench.timing.timer import Failure, Timing

_NOTABLE_SPREAD = 0.05
_EDGE_TITLE = "edge"
_TRAFFIC_TITLES = ("collectives", "received", "a row", "peak")


def header(report: BenchReport) -> list[str]:
    """List the titles of the columns, with those of optional measures."""
    largest, least = (
        ["largest"] * _has(report, "largest_us"),
        ["least host us"] * _has(report, "least_host_us"),
    )
    host = ["host us"] * _has(report, "host_us")
    memory = ["extra memory"] * _has_memory(report)
    optional = (*largest, *host, *least, *memory, *[*_TRAFFIC_TITLES] * _has_traffic(report))
    names = [
        title
        for name in report.contenders
        for title in (f"{name} us", *["of all-gather"] * _is_paired(name, report), *optional)
    ]
    facts = [axis.heading for axis in _axes(report)]
    edge = [_EDGE_TITLE] * _has_edges(report)
    return [*facts, *_figure_titles(report), f"{report.operation.floor.name} us", *names, *edge]


def rows(report: BenchReport) -> list[list[str]]:
    """Return the cells as text."""
    return [[*_facts(line, report), *_entries(line, report)] for line in report.lines]


def as_text(report: BenchReport) -> list[str]:
    """Write lines without rules; no column is ever cut."""
    table = [header(report), *rows(report)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    in_words = _in_words(report)
    left = [title in in_words for title in table[0]]
    return ["  ".join(_padded(row, widths, left)).rstrip() for row in table]


def as_markdown(report: BenchReport) -> str:
    """Write a file: the command, the machine, the table, the notes."""
    return markdown_page(report.command, report.head, [as_section(report)])


def as_section(report: BenchReport) -> str:
    """Write the table and the notes in Markdown."""
    table = markdown_table(header(report), rows(report), in_words=_in_words(report))
    notes = "\n".join(f"* {note}" for note in report.notes)
    return "\n\n".join(part for part in (table, notes) if part)


def markdown_page(command: str, head: Sequence[str], sections: Sequence[str]) -> str:
    """Write a file: the command, the machine and the method, the sections."""
    return "\n\n".join([f"`{command}`", " ".join(head), *sections]) + "\n"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]], in_words: Collection[str]) -> str:
    """Write a table in Markdown; columns with titles ``in_words`` are flush left, numbers flush right."""
    rule = ["---" if title in in_words else "--:" for title in titles]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *rows))


def _axes(report: BenchReport) -> list[Axis]:
    """List the axes with a column: optional ones only where a cell deviates from the default."""
    cells = [line.cell for line in report.lines]
    return [
        axis
        for axis in report.cell_axes
        if not (axis.optional and all(getattr(cell, axis.field) == _default(axis, cell) for cell in cells))
    ]


def _default(axis: Axis, cell: Any) -> Any:
    return type(cell).__dataclass_fields__[axis.field].default


def _in_words(report: BenchReport) -> set[str]:
    """List the titles of the columns of words, which are flush left."""
    return {axis.heading for axis in _axes(report) if axis.choices} | {_EDGE_TITLE}


def _padded(row: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> list[str]:
    return [
        text.ljust(width) if flush else text.rjust(width)
        for text, width, flush in zip(row, widths, left, strict=True)
    ]


def _facts(line: CellResult, report: BenchReport) -> list[str]:
    values = [getattr(line.cell, axis.field) for axis in _axes(report)]
    facts = ["none" if value is None else str(value) for value in values]
    figures = [
        f"{line.figures[title]:,.0f}" if title in line.figures else "-" for title in _figure_titles(report)
    ]
    floor = line.floor
    return [*facts, *figures, "-" if isinstance(floor, Failure) else _microseconds(floor) + _spread(floor)]


def _entries(line: CellResult, report: BenchReport) -> list[str]:
    texts = []
    for name in report.contenders:
        entry = line.entries[name]
        texts.append(_entry(line, entry))
        if _is_paired(name, report):
            share = line.share_of_gather(name)
            texts.append("-" if math.isnan(share) else f"{share:.2f}x")
        if _has(report, "largest_us"):
            texts.append(_largest(entry))
        for field in ("host_us", "least_host_us"):
            if _has(report, field):
                host = None if isinstance(entry, Failure) else getattr(entry, field)
                texts.append("-" if host is None else _number(host))
        if _has_memory(report):
            texts.append(_size(line.memory[name]) if name in line.memory else "-")
        if _has_traffic(report):
            texts += _traffic_cells(line, name)
    if _has_edges(report):
        texts.append(", ".join(f"{name} {growth:.1f}x" for name, growth in (line.edges or {}).items()))
    return texts


def _traffic_cells(line: CellResult, name: str) -> list[str]:
    """Return the columns of :data:`_TRAFFIC_TITLES`."""
    traffic = line.traffic.get(name)
    if traffic is None:
        return ["-"] * len(_TRAFFIC_TITLES)
    a_row = traffic.received / max(1, line.cell.num_rows)
    return [f"{traffic.collectives}", _size(traffic.received), _size(round(a_row)), _size(traffic.peak)]


def _entry(line: CellResult, entry: Timing | Failure) -> str:
    if isinstance(entry, Failure):
        return "-"
    ratio = line.ratio(entry)
    places = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{_microseconds(entry)} ({ratio:.{places}f}x){_spread(entry)}"


def _largest(entry: Timing | Failure) -> str:
    """Write the largest time with its ratio to the median."""
    if isinstance(entry, Failure) or entry.largest_us is None:
        return "-"
    return f"{_number(entry.largest_us)} ({entry.largest_us / entry.us:.2f}x)"


def _microseconds(timing: Timing) -> str:
    return _number(timing.us)


def _number(us: float) -> str:
    return f"{us:.1f}" if us < 999.95 else f"{us:,.0f}"


def _spread(timing: Timing) -> str:
    return f" ±{100 * timing.spread:.0f} %" if timing.spread > _NOTABLE_SPREAD else ""


def _size(nbytes: int) -> str:
    for unit, of in (("MB", 10**6), ("KB", 10**3)):
        if nbytes >= of:
            return f"{nbytes / of:,.1f} {unit}"
    return f"{nbytes} B"


def _is_paired(name: str, report: BenchReport) -> bool:
    return BEHIND_GATHER + name in report.contenders


def _figure_titles(report: BenchReport) -> list[str]:
    return list(dict.fromkeys(title for line in report.lines for title in line.figures))


def _has_edges(report: BenchReport) -> bool:
    return any(line.edges is not None for line in report.lines)


def _has_traffic(report: BenchReport) -> bool:
    return any(line.traffic for line in report.lines)


def _has_memory(report: BenchReport) -> bool:
    return any(line.memory for line in report.lines)


def _has(report: BenchReport, field: str) -> bool:
    """Whether a contender has a time of an optional field of :class:`Timing`."""
    timings = (entry for line in report.lines for entry in line.entries.values())
    return any(getattr(timing, field, None) is not None for timing in timings)
