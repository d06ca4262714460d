"""The findings of a run, a line for each cell: as data, as a table for a terminal, as Markdown for a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

from tokendraw.tools import all_of
from tokendraw_bench import operations
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
        floors = [line.floor for line in self.lines if isinstance(line.floor, Timing)]
        spreads: dict[str, float] = {}
        for name, timing in (
            *((f"the {self.operation.floor}", floor) for floor in floors),
            *self._timings(),
        ):
            spreads[name] = max(spreads.get(name, 0.0), timing.spread)
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
            f"{self.operation.floor}; ± half the distance of the quartiles, where it is over 5 %."
        )

    @property
    def notes(self) -> list[str]:
        """List the notes below the table: a busy machine, the floor, the fastest ways, the reasons of dashes."""
        operation = self.operation
        passes = all_of(dict.fromkeys(line.floor_by for line in self.lines if line.floor_by))
        kind = (
            "the fastest of several:"
            if operation.floor == "read"
            else "of the largest tensor that goes in, by"
        )
        floor = f"The {operation.floor} is {kind} {passes}." if passes else ""
        notes = [self.busy, floor, operation.note]
        notes = [note for note in notes if note]
        floors = [line.floor for line in self.lines if isinstance(line.floor, Timing)]
        hosts = [timing.host_us for timing in floors if timing.host_us is not None]
        if hosts and any(timing.largest_us for timing in floors):
            notes.append(f"The {operation.floor} keeps the host for {min(hosts):.1f} to {max(hosts):.1f} us.")
        for name in self.contenders:
            ways = dict.fromkeys(way for line in self.lines if (way := line.way(name)))
            if ways:
                notes.append(f"{name} is the fastest of several: {'; '.join(ways)}.")
        for (name, reason), count in Counter(self._reasons()).items():
            notes.append(f"{name}: {reason.rstrip('.')} ({count} of {len(self.lines)} cells).")
        eager = dict.fromkeys(name for name, timing in self._timings() if timing.how == "eager")
        if eager:
            notes.append(f"Not in a graph, so that the time may be the host's: {all_of(eager)}.")
        return notes

    @property
    def has_times(self) -> bool:
        """Whether any contender could be timed."""
        return any(True for _ in self._timings())

    def as_json(self) -> dict[str, Any]:
        """Return the run under the keys of the command's ``--json``."""
        constants = [axis.field for axis in self.operation.axes if axis not in self.cell_axes]
        return {
            **{name: value for name, value in vars(self).items() if name not in ("host", "lines", "machine")},
            "operation": self.operation.name,
            "cores": self.machine.cores if self.machine else None,
            "load": self.machine.load if self.machine else None,
            "busy": self.busy,
            "notes": self.notes,
            **{name: getattr(self.cell, name) for name in constants},
            "cells": [self._line_json(line) for line in self.lines],
        }

    def _line_json(self, line: CellResult) -> dict[str, Any]:
        def json(entry: Timing | Failure, by: str) -> dict[str, Any]:
            if isinstance(entry, Timing):
                return {**asdict(entry), "ratio": line.ratio(entry), "reason": "", "by": by}
            empty = dict.fromkeys([*(item.name for item in fields(Timing)), "ratio"])
            return {**empty, "reason": entry.reason, "by": by}

        entries = {name: json(entry, line.way(name)) for name, entry in line.entries.items()}
        for name, entry in entries.items():
            if line.memory:
                entry["extra_memory"] = line.memory.get(name)
            if line.edges is not None:
                entry["edge"] = line.edges.get(name)
        return {
            **{axis.field: getattr(line.cell, axis.field) for axis in self.cell_axes},
            **line.figures,
            "buffers": line.buffers,
            "nbytes": line.cell.nbytes,
            self.operation.floor: json(line.floor, line.floor_by),
            "entries": entries,
        }

    def _reasons(self) -> Iterator[tuple[str, str]]:
        """List contenders without a time and their reasons, cell after cell, and way after way."""
        for line in self.lines:
            for name, entry in line.entries.items():
                ways = {f"{name} by {way}": result for way, result in line.ways.get(name, {}).items()}
                for way, result in (ways or {name: entry}).items():
                    if isinstance(result, Failure):
                        yield way, result.reason

    def _timings(self) -> Iterator[tuple[str, Timing]]:
        for line in self.lines:
            for name, entry in line.entries.items():
                if isinstance(entry, Timing):
                    yield name, entry


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
    columns = [*_columns(report)]
    return [[column.text(line) for column in columns] for line in report.lines]


def as_text(report: BenchReport) -> list[str]:
    """Write lines without rules; no column is ever cut."""
    table = [header(report), *rows(report)]
    widths = [max(map(len, texts)) for texts in zip(*table, strict=True)]
    forms = ["<" if column.is_in_words else ">" for column in _columns(report)]
    return [
        "  ".join(
            f"{text:{form}{width}}" for text, form, width in zip(row, forms, widths, strict=True)
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


def _columns(report: BenchReport) -> Iterator[_Column]:
    """Yield the columns: axes, figures of the inputs, the floor, the contenders, and edges of a sweep.

    An optional axis has one only where a cell deviates from the default.
    """
    lines = report.lines
    for axis in report.cell_axes:
        default = report.operation.cell.__dataclass_fields__[axis.field].default
        if not axis.optional or any(getattr(line.cell, axis.field) != default for line in lines):
            yield _Column(axis.title, partial(_axis, axis.field), is_in_words=bool(axis.choices))
    for title in dict.fromkeys(figure for line in lines for figure in line.figures):
        yield _Column(title, partial(_figure, title))
    yield _Column(f"{report.operation.floor} us", _floor)
    timings = [entry for line in lines for entry in line.entries.values() if isinstance(entry, Timing)]
    for name in report.contenders:
        yield _Column(f"{name} us", partial(_entry, name))
        if any(timing.largest_us is not None for timing in timings):
            yield _Column("largest", partial(_largest, name))
        for field_, title in (("host_us", "host us"), ("least_host_us", "least host us")):
            if any(getattr(timing, field_) is not None for timing in timings):
                yield _Column(title, partial(_host, name, field_))
        if any(line.memory for line in lines):
            yield _Column("extra memory", partial(_memory, name))
    if any(line.edges is not None for line in lines):
        yield _Column("edge", _edges, is_in_words=True)


def _axis(field_: str, line: CellResult) -> str:
    value = getattr(line.cell, field_)
    return "none" if value is None else str(value)


def _figure(title: str, line: CellResult) -> str:
    return _number(line.figures.get(title), "{:,.0f}")


def _floor(line: CellResult) -> str:
    return "-" if isinstance(line.floor, Failure) else _number(line.floor.us) + _spread(line.floor)


def _edges(line: CellResult) -> str:
    return ", ".join(f"{name} {growth:.1f}x" for name, growth in (line.edges or {}).items())


def _entry(name: str, line: CellResult) -> str:
    entry = line.entries[name]
    if isinstance(entry, Failure):
        return "-"
    ratio = line.ratio(entry)
    places = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{_number(entry.us)} ({ratio:.{places}f}x){_spread(entry)}"


def _largest(name: str, line: CellResult) -> str:
    """Write the largest time with its ratio to the median."""
    entry = line.entries[name]
    if isinstance(entry, Failure) or entry.largest_us is None:
        return "-"
    return f"{_number(entry.largest_us)} ({entry.largest_us / entry.us:.2f}x)"


def _host(name: str, field_: str, line: CellResult) -> str:
    return _number(getattr(line.entries[name], field_, None))


def _memory(name: str, line: CellResult) -> str:
    nbytes = line.memory.get(name)
    if nbytes is None or nbytes < 1000:
        return "-" if nbytes is None else f"{nbytes} B"
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 10**6 else f"{nbytes / 1e3:,.1f} KB"


def _number(value: float | None, form: str = "") -> str:
    """Write a value; a dash for None and NaN."""
    if value is None or value != value:
        return "-"
    return (form or ("{:.1f}" if value < 999.95 else "{:,.0f}")).format(value)


def _spread(timing: Timing) -> str:
    return f" ±{100 * timing.spread:.0f} %" if timing.spread > _NOTABLE_SPREAD else ""
