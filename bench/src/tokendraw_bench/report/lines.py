"""The findings of a run as data, a line for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tokendraw.tools import all_of
from tokendraw_bench import operations
from tokendraw_bench.operation import BenchOperation
from tokendraw_bench.timing import contention
from tokendraw_bench.timing.contention import Machine
from tokendraw_bench.timing.timer import Failure, Timing

BEHIND_GATHER = "all-gather, "
"""Stands before the name of a sampler that draws from logits which were gathered from all ranks."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Holds what one call over ranks takes beside its time, on the rank where it takes most."""

    collectives: int
    received: int
    """Bytes that the rank receives."""
    peak: int
    """Most bytes of tensors that the call has alive at a time, beside its inputs."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """The line of one cell."""

    cell: Any
    """A :class:`tokendraw_bench.operation.AnyCell`."""
    buffers: int
    """Number of sets of inputs that took turns."""
    floor: Timing
    """Fastest pass that ratios refer to."""
    floor_by: str
    entries: Mapping[str, Timing | Failure]
    """Time of each contender, or the reason why it cannot serve the cell."""
    ways: Mapping[str, Mapping[str, Timing | Failure]] = field(default_factory=dict)
    """Every way that was tried, by contender, for those with several ways; the fastest is their entry."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Measures of the inputs, by the title of their column."""
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    """Costs of calls over ranks beside their time, by contender."""

    def ratio(self, timing: Timing) -> float:
        """Return a time as a multiple of the floor's."""
        return timing.us / self.floor.us if self.floor.us else float("nan")

    def share_of_gather(self, name: str) -> float:
        """Return the time of a sampler over ranks as a share of what it takes behind an all-gather; NaN if unknown."""
        own, other = self.entries[name], self.entries.get(BEHIND_GATHER + name)
        if not isinstance(own, Timing) or not isinstance(other, Timing):
            return float("nan")
        return own.us / other.us

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
    repeats: int
    threads: int
    """Number of torch's threads on the host."""
    versions: Mapping[str, str]
    """Version of each distribution that took part."""
    contenders: tuple[str, ...]
    """Names of the contenders, in the order of the columns."""
    lines: tuple[Line, ...]
    """At least one, all of one operation."""
    seconds: float
    machine: Machine | None = None
    """State of the host before the run; None if it was not looked at."""
    omp_wait_policy: str | None = None
    """The environment's OMP_WAIT_POLICY: whether torch's threads spin or sleep while they wait. None: unset."""

    @property
    def cell(self) -> Any:
        """Return one of the cells, for what all have in common."""
        return self.lines[0].cell

    @property
    def operation(self) -> BenchOperation:
        """Return the record of the operation that was timed."""
        return operations.get(self.cell.operation)

    @property
    def busy(self) -> str:
        """Say that other work disturbed the times, and what to set; "" if nothing points to it."""
        spreads: dict[str, float] = {}
        for line in self.lines:
            for name, entry in {f"the {self.operation.floor.name}": line.floor, **line.entries}.items():
                if isinstance(entry, Timing):
                    spreads[name] = max(spreads.get(name, 0.0), entry.spread)
        machine = self.machine if self.device == "cpu" else None
        return contention.busy(machine, spreads, threads=self.threads, repeats=self.repeats)

    @property
    def head(self) -> list[str]:
        """Describe the run in two sentences."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = ""
        if self.device == "cpu":
            policy = f"={self.omp_wait_policy}" if self.omp_wait_policy else " unset"
            threads = f", {self.threads} thread{'s' * (self.threads > 1)}, OMP_WAIT_POLICY{policy}"
        said = self.operation.head(self.cell)
        return [
            f"{self.host}{threads}: {versions}.",
            f"{said}{' ' * bool(said)}Medians of {self.repeats}, in turns; {self.method}. In brackets the ratio to the "
            f"{self.operation.floor.name}; ± half the distance of the quartiles, where it is over 5 %.",
        ]

    @property
    def notes(self) -> list[str]:
        """Return notes below the table: a busy machine, the floor, the fastest ways, the reasons of dashes."""
        about = self.operation
        baselines = [name for name in self.contenders if name in about.baselines()]
        floor = about.floor.note.format(all_of(dict.fromkeys(line.floor_by for line in self.lines)))
        notes = [self.busy, floor, about.note, about.of_baselines(self.cell, baselines)]
        notes = [note for note in notes if note]
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
            "operation": self.operation.name,
            "cores": self.machine.cores if self.machine else None,
            "load": self.machine.load if self.machine else None,
            "busy": self.busy,
            **self.operation.constants,
            **{axis.field: getattr(self.cell, axis.field) for axis in self.operation.axes if axis.single},
            "cells": [self._line_json(line) for line in self.lines],
        }

    def _line_json(self, line: Line) -> dict[str, Any]:
        axes = [axis.field for axis in self.operation.axes if not axis.single]
        return {
            **{name: getattr(line.cell, name) for name in axes},
            **line.figures,
            "buffers": line.buffers,
            "nbytes": line.cell.nbytes,
            self.operation.floor.name: {**_entry_json(line, line.floor), "by": line.floor_by},
            "entries": {
                name: {**_entry_json(line, entry), "by": line.way(name), **_traffic_json(line, name)}
                for name, entry in line.entries.items()
            },
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
    *("command", "device", "method", "repeats", "threads", "omp_wait_policy", "versions", "contenders"),
    "seconds",
)


def _entry_json(line: Line, entry: Timing | Failure) -> dict[str, Any]:
    if isinstance(entry, Failure):
        return dict.fromkeys(("us", "q1_us", "q3_us", "host_us", "how", "ratio")) | {"reason": entry.reason}
    return {**asdict(entry), "ratio": line.ratio(entry), "reason": ""}


def _traffic_json(line: Line, name: str) -> dict[str, Any]:
    if not line.traffic:
        return {}
    found = line.traffic.get(name)
    return asdict(found) if found else dict.fromkeys(item.name for item in fields(Traffic))
