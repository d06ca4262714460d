"""The findings of a run as data, a line for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokendraw._messages.words import all_of
from tokendraw.bench import operations
from tokendraw.bench.cells import MIN_P, TEMPERATURE, TOP_K, TOP_P, Cell
from tokendraw.bench.timing import contention
from tokendraw.bench.timing.contention import Machine
from tokendraw.bench.timing.timer import Failure, Timing


@dataclass(frozen=True, kw_only=True)
class Line:
    """The line of one cell."""

    cell: Cell
    nucleus: float
    """Mean number of tokens that top-p alone keeps of a row."""
    buffers: int
    """Number of buffers that took turns."""
    nbytes: int
    """Bytes of one buffer of logits."""
    read: Timing
    """Fastest pass that only reads a buffer."""
    read_by: str
    entries: Mapping[str, Timing | Failure]
    """Time of each contender, or the reason why it cannot serve the cell."""
    ways: Mapping[str, Mapping[str, Timing | Failure]] = field(default_factory=dict)
    """Every way that was tried, by contender, for those with several ways; the fastest is their entry."""

    def ratio(self, timing: Timing) -> float:
        """Return a time as a multiple of the read."""
        return timing.us / self.read.us if self.read.us else float("nan")

    def way(self, name: str) -> str:
        """Name the fastest way of a contender; "" where it has only one, or none works."""
        entry = self.entries[name]
        if isinstance(entry, Failure):
            return ""
        return next((way for way, tried in self.ways.get(name, {}).items() if tried is entry), "")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run, and the machine and versions that it ran on."""

    command: str
    """Command that repeats it."""
    device: str
    host: str
    method: str
    """Describes how times were taken."""
    seeded: bool
    repeats: int
    threads: int
    """Number of torch's threads on the host."""
    versions: Mapping[str, str]
    """Version of each distribution that took part."""
    contenders: tuple[str, ...]
    """Names of the contenders, in the order of the columns."""
    lines: tuple[Line, ...]
    seconds: float
    operation: str = "sample"
    machine: Machine | None = None
    """State of the host before the run; None if it was not looked at."""

    @property
    def busy(self) -> str:
        """Say that other work disturbed the times, and what to set; "" if nothing points to it."""
        spreads: dict[str, float] = {}
        for line in self.lines:
            for name, entry in {"the read": line.read, **line.entries}.items():
                if isinstance(entry, Timing):
                    spreads[name] = max(spreads.get(name, 0.0), entry.spread)
        machine = self.machine if self.device == "cpu" else None
        return contention.busy(machine, spreads, threads=self.threads, repeats=self.repeats)

    @property
    def head(self) -> list[str]:
        """Describe the run in two sentences."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.device == "cpu" else ""
        rows = "seeded rows" if self.seeded else "unseeded rows"
        return [
            f"{self.host}{threads}: {versions}.",
            f"T = {TEMPERATURE}, k = {TOP_K}, p = {TOP_P}, min-p = {MIN_P}; {rows}. Medians of {self.repeats}, in "
            f"turns; {self.method}. In brackets the ratio to the read; ± half the distance of the quartiles, where it "
            "is over 5 %.",
        ]

    @property
    def notes(self) -> list[str]:
        """Return notes below the table: a busy machine, the pass that read, the fastest ways, the reasons of dashes."""
        readers = dict.fromkeys(line.read_by for line in self.lines)
        notes = [self.busy] if self.busy else []
        notes += [f"The read is the fastest of several: {all_of(readers)}."] if readers else []
        about = operations.get(self.operation).note
        notes += [about] if about else []
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
        """Return everything under the keys that the command documents."""
        return {
            **{name: getattr(self, name) for name in _FACTS},
            "cores": self.machine.cores if self.machine else None,
            "load": self.machine.load if self.machine else None,
            "busy": self.busy,
            "temperature": TEMPERATURE,
            "top_k": TOP_K,
            "top_p": TOP_P,
            "min_p": MIN_P,
            "cells": [_line_json(line) for line in self.lines],
        }

    def _reasons(self) -> Iterator[tuple[str, str]]:
        """List who was not timed, and why, cell after cell; for a contender with several ways, each way by itself."""
        for line in self.lines:
            for name, entry in line.entries.items():
                ways = {f"{name} by {way}": tried for way, tried in line.ways.get(name, {}).items()}
                for who, tried in (ways or {name: entry}).items():
                    if isinstance(tried, Failure):
                        yield who, tried.reason

    def _entries(self) -> Iterator[tuple[Line, str, Timing | Failure]]:
        for line in self.lines:
            for name, entry in line.entries.items():
                yield line, name, entry


_FACTS = (
    "command",
    "operation",
    "device",
    "method",
    "seeded",
    "repeats",
    "threads",
    "versions",
    "contenders",
    "seconds",
)


def _line_json(line: Line) -> dict[str, Any]:
    return {
        **asdict(line.cell),
        "nucleus": line.nucleus,
        "buffers": line.buffers,
        "nbytes": line.nbytes,
        "read": {**_entry_json(line, line.read), "by": line.read_by},
        "entries": {
            name: {**_entry_json(line, entry), "by": line.way(name)} for name, entry in line.entries.items()
        },
    }


def _entry_json(line: Line, entry: Timing | Failure) -> dict[str, Any]:
    if isinstance(entry, Failure):
        return dict.fromkeys(("us", "q1_us", "q3_us", "host_us", "how", "ratio")) | {"reason": entry.reason}
    return {**asdict(entry), "ratio": line.ratio(entry), "reason": ""}
