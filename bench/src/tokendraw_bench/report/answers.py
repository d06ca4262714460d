"""Answers in a sentence to the questions of charts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from tokendraw_bench.operation import Axis
from tokendraw_bench.report.records import Measurement, RunRecord

_MOST_EDGES = 5


def edges(run: RunRecord) -> list[Measurement]:
    """List the edges of a sweep, the largest first."""
    return sorted((m for m in run.measurements if m.edge), key=lambda m: -m.edge)


def ratios(run: RunRecord) -> str:
    """State the least and the greatest ratio of each contender."""
    return _by_contender(run.measurements, lambda group: f"{_range([m.ratio for m in group])} {run.floors}")


def edge_sentence(run: RunRecord) -> str:
    """Name the edges of a sweep, the largest first."""
    found = [f"{m.edge:.1f} times for {m.contender} at {run.label(m.cell, run.axes)}" for m in edges(run)]
    if not found:
        return f"No time more than doubles from one value to the next, measured in {run.floors}."
    more = f"; and {len(found) - _MOST_EDGES} more" if len(found) > _MOST_EDGES else ""
    return f"Edges, in {run.floors}: {'; '.join(found[:_MOST_EDGES])}{more}."


def growth(run: RunRecord, measured: Sequence[Measurement], axis: Axis) -> str:
    """State how many times the fastest call the slowest takes, among calls that differ in one axis."""
    others = [other for other in run.axes if other is not axis]

    def most(group: Sequence[Measurement]) -> str:
        lines: dict[Hashable, list[float]] = {}
        for m in group:
            lines.setdefault(run.label(m.cell, others), []).append(m.us)
        return f"{max(max(times) / min(times) for times in lines.values()):.2f} times"

    return f"From the fastest to the slowest of a line, at most: {_by_contender(measured, most)}"


def fastest(run: RunRecord) -> str:
    """Say who is the fastest in how many cells, and how far the next one is."""
    times_by_cell: dict[int, list[tuple[float, str]]] = {}
    for m in run.measurements:
        times_by_cell.setdefault(id(m.cell), []).append((m.us, m.contender))
    leads: dict[str, list[float]] = {}
    for times in map(sorted, times_by_cell.values()):
        if len(times) > 1:
            leads.setdefault(times[0][1], []).append(times[1][0] / times[0][0])
    total = sum(map(len, leads.values()))
    ranked = sorted(leads.items(), key=lambda item: -len(item[1]))
    sentences = [
        f"{name} is the fastest in {len(lead)} of {total} cells, the next one takes {_range(lead)} times as long"
        for name, lead in ranked
    ]
    return f"{'; '.join(sentences)}."


def _by_contender(measured: Sequence[Measurement], words: Callable[[Sequence[Measurement]], str]) -> str:
    names = dict.fromkeys(m.contender for m in measured)
    return "; ".join(f"{name} {words([m for m in measured if m.contender == name])}" for name in names) + "."


def _range(ratios: Sequence[float]) -> str:
    least, most = (f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}" for ratio in (min(ratios), max(ratios)))
    return least if least == most else f"{least} to {most}"
