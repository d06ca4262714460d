"""The findings of a run, a line for each cell: as data, as a table for a terminal, as Markdown for a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from tokendraw.tools import all_of
from tokendraw_bench import operations
from tokendraw_bench.cells import UNUSUAL, Cell
from tokendraw_bench.operation import Axis, BenchOperation
from tokendraw_bench.timing import Failure, HostLoad, Timing, busy


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The results of a cell."""

    cell: Any
    """A :class:`tokendraw_bench.operation.AnyCell`."""
    buffers: int
    """Number of sets of inputs in rotation."""
    floor: Timing | Failure
    """Time of the fastest pass, the denominator of ratios, or the reason why the cell has no times."""
    floor_by: str
    entries: Mapping[str, Timing | Failure]
    """Time of each contender, or the reason why it cannot serve the cell."""
    ways: Mapping[str, Mapping[str, Timing | Failure]] = field(default_factory=dict)
    """Times of all ways of a contender with several ways; the fastest is its entry."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measures of the inputs, by the title of their column."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Peak bytes of a call beyond its inputs and result, by contender, if measured."""
    edges: Mapping[str, float] | None = None
    """Growth of the ratio from another cell of a sweep, by contender, where it is an edge; None outside of a sweep."""

    def ratio(self, timing: Timing) -> float:
        """Return a time as a multiple of the floor's."""
        return timing.us / self.floor.us if isinstance(self.floor, Timing) and self.floor.us else float("nan")

    def way(self, name: str) -> str:
        """Name the fastest way of a contender; "" if it has a single way or none works."""
        entry = self.entries[name]
        if isinstance(entry, Failure):
            return ""
        return next((way for way, result in self.ways.get(name, {}).items() if result is entry), "")


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """A run: results, machine and versions."""

    command: str
    """Command that repeats the run."""
    device: str
    host: str
    method: str
    """Describes how times were taken."""
    repeats: int
    threads: int
    """Number of torch's threads on the host."""
    versions: Mapping[str, str]
    """Version of each distribution of the run."""
    contenders: tuple[str, ...]
    """Names of the contenders, in the order of the columns."""
    lines: tuple[CellResult, ...]
    """At least one, all of one operation."""
    seconds: float
    machine: HostLoad | None = None
    """Load of the host before the run; None if unknown."""
    omp_wait_policy: str | None = None
    """The environment's OMP_WAIT_POLICY: whether torch's threads spin or sleep while they wait. None: unset."""

    @property
    def cell(self) -> Any:
        """Return the first cell, for values that all cells share."""
        return self.lines[0].cell

    @property
    def operation(self) -> BenchOperation:
        """Return the record of the timed operation."""
        return operations.get(self.cell.operation)

    @property
    def cell_axes(self) -> list[Axis]:
        """List the axes with a value of each cell: those of a single value only where cells deviate."""
        return [axis for axis in self.operation.axes if not (axis.single and self._is_constant(axis))]

    def _is_constant(self, axis: Axis) -> bool:
        return all(getattr(line.cell, axis.field) == getattr(self.cell, axis.field) for line in self.lines)

    @property
    def busy(self) -> str:
        """Warn of times disturbed by other work, with the settings to change; "" without signs of it."""
        spreads: dict[str, float] = {}
        for line in self.lines:
            for name, entry in {f"the {self.operation.floor.name}": line.floor, **line.entries}.items():
                if isinstance(entry, Timing):
                    spreads[name] = max(spreads.get(name, 0.0), entry.spread)
        machine = self.machine if self.device == "cpu" else None
        return busy(machine, spreads, threads=self.threads, repeats=self.repeats)

    @property
    def head(self) -> list[str]:
        """Describe the run in two sentences."""
        parameters = self.operation.head(self.cell)
        prefix = f"{parameters} " if parameters else ""
        return [self.machine_sentence, f"{prefix}{self.method_sentence}"]

    @property
    def machine_sentence(self) -> str:
        """Describe the machine and the versions."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = ""
        if self.device == "cpu":
            policy = f"={self.omp_wait_policy}" if self.omp_wait_policy else " unset"
            threads = f", {self.threads} thread{'s' * (self.threads > 1)}, OMP_WAIT_POLICY{policy}"
        return f"{self.host}{threads}: {versions}."

    @property
    def method_sentence(self) -> str:
        """Describe how times were taken and are written."""
        return (
            f"Medians of {self.repeats}, in turns; {self.method}. In brackets the ratio to the "
            f"{self.operation.floor.name}; ± half the distance of the quartiles, where it is over 5 %."
        )

    @property
    def notes(self) -> list[str]:
        """List the notes below the table: a busy machine, the floor, the fastest ways, the reasons of dashes."""
        operation = self.operation
        baselines = [name for name in self.contenders if name in operation.baselines()]
        passes = all_of(dict.fromkeys(line.floor_by for line in self.lines if line.floor_by))
        floor = operation.floor.note.format(passes) if passes else ""
        notes = [self.busy, floor, operation.note, operation.baseline_note(self.cell, baselines)]
        notes = [*(note for note in notes if note), *_unusual_notes(self.lines, self.contenders)]
        floors = [line.floor for line in self.lines if isinstance(line.floor, Timing)]
        hosts = [timing.host_us for timing in floors if timing.host_us is not None]
        if hosts and any(timing.largest_us for timing in floors):
            notes.append(
                f"The {operation.floor.name} keeps the host for {min(hosts):.1f} to {max(hosts):.1f} us."
            )
        for name in self.contenders:
            ways = dict.fromkeys(way for line in self.lines if (way := line.way(name)))
            if ways:
                notes.append(f"{name} is the fastest of several: {'; '.join(ways)}.")
        reasons: dict[tuple[str, str], int] = {}
        for name, reason in self._reasons():
            reasons[name, reason] = reasons.get((name, reason), 0) + 1
        for (name, reason), count in reasons.items():
            notes.append(f"{name}: {reason.rstrip('.')} ({count} of {len(self.lines)} cells).")
        eager = dict.fromkeys(
            name for _, name, entry in self._entries() if isinstance(entry, Timing) and entry.how == "eager"
        )
        if eager:
            notes.append(f"Not in a graph, so that the time may be the host's: {all_of(eager)}.")
        return notes

    @property
    def has_times(self) -> bool:
        """Whether any contender could be timed."""
        return any(isinstance(entry, Timing) for _, _, entry in self._entries())

    def as_json(self) -> dict[str, Any]:
        """Return the run under the keys of the command's ``--json``."""
        return {
            **{name: getattr(self, name) for name in _JSON_FIELDS},
            "operation": self.operation.name,
            "cores": self.machine.cores if self.machine else None,
            "load": self.machine.load if self.machine else None,
            "busy": self.busy,
            "notes": self.notes,
            **{
                axis.field: getattr(self.cell, axis.field)
                for axis in self.operation.axes
                if axis not in self.cell_axes
            },
            "cells": [self._line_json(line) for line in self.lines],
        }

    def _line_json(self, line: CellResult) -> dict[str, Any]:
        return {
            **{axis.field: getattr(line.cell, axis.field) for axis in self.cell_axes},
            **line.figures,
            "buffers": line.buffers,
            "nbytes": line.cell.nbytes,
            self.operation.floor.name: {**_entry_json(line, line.floor), "by": line.floor_by},
            "entries": {
                name: {
                    **_entry_json(line, entry),
                    "by": line.way(name),
                    **_memory_json(line, name),
                    **_edge_json(line, name),
                }
                for name, entry in line.entries.items()
            },
        }

    def _reasons(self) -> Iterator[tuple[str, str]]:
        """List contenders without a time and their reasons, cell after cell, and way after way."""
        for line in self.lines:
            for name, entry in line.entries.items():
                ways = {f"{name} by {way}": result for way, result in line.ways.get(name, {}).items()}
                for way, result in (ways or {name: entry}).items():
                    if isinstance(result, Failure):
                        yield way, result.reason

    def _entries(self) -> Iterator[tuple[CellResult, str, Timing | Failure]]:
        for line in self.lines:
            for name, entry in line.entries.items():
                yield line, name, entry


def _unusual_notes(lines: Sequence[CellResult], contenders: Sequence[str]) -> Iterator[str]:
    """Say for each contender how many times the time of common logits the slowest unusual logits take."""
    cells: dict[Cell, list[CellResult]] = {}
    for line in lines:
        if isinstance(line.cell, Cell):
            cells.setdefault(replace(line.cell, family=""), []).append(line)
    for name in contenders:
        to_slowest, to_fastest = [], []
        for group in cells.values():
            unusual = [us for line in group if line.cell.family in UNUSUAL for us in _us(line, name)]
            common = [us for line in group if line.cell.family not in UNUSUAL for us in _us(line, name)]
            if unusual and common:
                to_slowest.append(max(unusual) / max(common))
                to_fastest.append(max(unusual) / min(common))
        if to_slowest:
            yield (
                f"{name}: the slowest unusual logits take {_range(to_slowest)} times the slowest common ones under the "
                f"same filters, {_range(to_fastest)} times the fastest."
            )


def _us(line: CellResult, name: str) -> list[float]:
    entry = line.entries[name]
    return [entry.us] if isinstance(entry, Timing) else []


def _range(ratios: Sequence[float]) -> str:
    least, most = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return least if least == most else f"{least} to {most}"


_JSON_FIELDS = (
    *("command", "device", "method", "repeats", "threads", "omp_wait_policy", "versions", "contenders"),
    "seconds",
)


def _entry_json(line: CellResult, entry: Timing | Failure) -> dict[str, Any]:
    if isinstance(entry, Failure):
        return dict.fromkeys([*(item.name for item in fields(Timing)), "ratio"]) | {"reason": entry.reason}
    return {**asdict(entry), "ratio": line.ratio(entry), "reason": ""}


def _edge_json(line: CellResult, name: str) -> dict[str, Any]:
    return {} if line.edges is None else {"edge": line.edges.get(name)}


def _memory_json(line: CellResult, name: str) -> dict[str, Any]:
    """Return the extra memory of a contender, if measured."""
    return {"extra_memory": line.memory.get(name)} if line.memory else {}


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

    return _Column(axis.title, text, is_in_words=bool(axis.choices))


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
