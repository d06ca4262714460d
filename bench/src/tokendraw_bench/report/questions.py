"""The questions that the charts of a run answer: for each its points, panel by panel, and the answer in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from tokendraw.tools import all_of
from tokendraw_bench.operation import Axis
from tokendraw_bench.report.answers import edge_sentence, fastest, growth, ratios
from tokendraw_bench.report.records import Measurement, RunRecord, title_of, us_text

_MOST_PANELS = 12
_MOST_ROWS = 16

Point: TypeAlias = dict[str, Any]
"""``x``, ``y`` or ``row``, ``sampler``, ``series`` (points of a line), ``edge`` (a label; "" without), and texts to
show beside the point."""


class ChartForm(StrEnum):
    """How points are drawn."""

    LINES = "lines"  # a line for each series
    ROWS = "rows"  # a row for each cell, a point for each contender
    SCATTER = "scatter"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A question with its answer, and panels that share their axes."""

    form: ChartForm
    question: str
    answer: str
    x_title: str
    is_discrete: bool = False
    """Whether ``x`` has values that a caller chose, such as batches."""
    y_title: str = ""
    panels: Mapping[str, Sequence[Point]]
    """Points by the title of the panel."""
    lines: str = ""
    """Describes the difference between lines of one contender in a panel; "" for a single line."""
    floor: str = ""
    """Name of the floor among the contenders; "" if it has no points."""

    @property
    def points(self) -> Iterator[Point]:
        """Yield the points of all panels."""
        for points in self.panels.values():
            yield from points


def charts(run: RunRecord) -> list[Chart]:
    """Make the charts of a run, or of a sweep, whose slowest calls are part of :func:`slowest_calls` of all sweeps."""
    if not run.measurements:
        return []
    if not run.is_sweep:
        along = [_along(run, axis) for axis in run.axes if axis.field != "batch"]
        found = [_by_batch(run), *along, _rows(run), slowest_calls([run])]
    else:
        swept = [axis for axis in run.axes if axis.field in run.swept]
        found = [(_along(run, swept[0]) if len(swept) == 1 else None) or _rows(run)]
    return [chart for chart in found if chart is not None]


def slowest_calls(runs: Sequence[RunRecord]) -> Chart | None:
    """Make the chart of the largest times of single calls, beside the medians; None if they were not measured."""
    measured = [(run, m) for run in runs for m in run.measurements if m.excess]
    if not measured:
        return None
    run, most = max(measured, key=lambda pair: pair[1].excess)
    place = run.label(most.cell, run.axes)
    return Chart(
        form=ChartForm.SCATTER,
        question=f"How long is the slowest of {run.json['repeats']} calls, beside the median?",
        answer=f"At most {most.excess:.2f} times: {most.contender}{place and f', {place}'}.",
        x_title="median, µs",
        y_title="slowest call, in medians",
        panels={"": [{**_point(run, m), "x": m.us, "y": m.excess} for run, m in measured]},
    )


def _by_batch(run: RunRecord) -> Chart | None:
    """Ratios by batch. A size that goes with the batch, as the vocabularies of a preset, makes no other series."""
    if "batch" not in [axis.field for axis in run.axes]:
        return None
    shapes = {tuple(cell[field] for field in run.operation.shape) for cell in run.cells}
    fields = run.operation.shape if len(shapes) == len(run.values("batch")) else ("batch",)
    return Chart(
        form=ChartForm.LINES,
        question=f"How many {run.floors} does a call take, by batch?",
        answer=ratios(run),
        x_title="batch",
        is_discrete=True,
        y_title=f"time, in {run.floors}",
        **_lines(run, run.measurements, fields, lambda m: {"x": m.cell["batch"], "y": m.ratio}),
    )


def _along(run: RunRecord, axis: Axis) -> Chart | None:
    """Times along the numbers of an axis, or for families of logits along their nucleus; None without a line."""
    field = "nucleus" if axis.field == "family" else axis.field
    measured = [m for m in run.measurements if isinstance(m.cell.get(field), int | float)]
    floor = f"a {run.floor}"
    cells = {id(m.cell): m for m in measured}
    floors = [
        replace(
            m, contender=floor, us=m.floor_us, q1_us=m.floor_us, q3_us=m.floor_us, largest_us=None, edge=0
        )
        for m in cells.values()
    ]
    chart = _lines(run, [*floors, *measured], (axis.field,), lambda m: {"x": m.cell[field], "y": m.us})
    places = {(p["sampler"], p["series"], title) for title, points in chart["panels"].items() for p in points}
    if len(places) == len(floors) + len(measured):
        return None  # a line needs two points
    words = "the width of the nucleus" if field == "nucleus" else title_of(axis)
    return Chart(
        form=ChartForm.LINES,
        question=f"How does the time of a call grow with {words}?",
        answer=edge_sentence(run) if run.is_sweep else growth(run, measured, axis),
        x_title="nucleus, tokens" if field == "nucleus" else title_of(axis),
        is_discrete=field == axis.field,
        y_title="time, µs",
        floor=floor,
        **chart,
    )


def _rows(run: RunRecord) -> Chart:
    """A row for each cell. Swept values stay in the rows; of others as few make panels as keep these short."""
    axes = sorted(run.axes, key=lambda axis: axis.field in run.swept)
    count = sum(axis.field not in run.swept for axis in axes)
    if not run.is_sweep:
        sizes = [max(Counter(run.label(c, axes[:i]) for c in run.cells).values()) for i in range(len(axes))]
        count = next((i for i, size in enumerate(sizes) if size <= _MOST_ROWS), max(0, len(axes) - 1))
    panels: dict[str, list[Point]] = {}
    for m in run.measurements:
        point = {**_point(run, m), "x": m.ratio, "row": run.label(m.cell, axes[count:])}
        panels.setdefault(run.label(m.cell, axes[:count]), []).append(point)
    several = len({m.contender for m in run.measurements}) > 1
    question = "Which one is the fastest, and by how much?"
    return Chart(
        form=ChartForm.ROWS,
        question=question if several else f"How many {run.floors} does each call take?",
        answer=edge_sentence(run) if run.is_sweep else fastest(run) if several else ratios(run),
        x_title=f"time, in {run.floors}",
        panels=panels,
    )


def _divided(run: RunRecord, x_fields: Sequence[str]) -> tuple[list[Axis], list[Axis]]:
    """Divide the axes beside ``x_fields`` into those of panels, and those of the lines in a panel."""
    others = [axis for axis in run.axes if axis.field not in x_fields]
    panels: list[Axis] = []
    for axis in sorted(others, key=lambda axis: axis.changes_inputs):  # first what requests ask for
        if len({run.label(cell, [*panels, axis]) for cell in run.cells}) <= _MOST_PANELS:
            panels.append(axis)
    return [axis for axis in others if axis in panels], [axis for axis in others if axis not in panels]


def _lines(
    run: RunRecord,
    measured: Iterable[Measurement],
    x_fields: Sequence[str],
    position: Callable[[Measurement], Point],
) -> dict[str, Any]:
    """Return the panels of a chart, and what distinguishes the lines in a panel."""
    of_panels, of_lines = _divided(run, x_fields)
    panels: dict[str, list[Point]] = {}
    for m in measured:
        point = {**_point(run, m), **position(m), "series": run.label(m.cell, of_lines)}
        panels.setdefault(run.label(m.cell, of_panels), []).append(point)
    names = all_of(title_of(axis) for axis in of_lines)
    return {"panels": panels, "lines": f"Lines of one colour differ in {names}." if of_lines else ""}


def _point(run: RunRecord, m: Measurement) -> Point:
    """Return the texts of a point."""
    texts = {
        "sampler": m.contender,
        "call": run.label(m.cell, run.axes),
        "time": f"{us_text(m.us)} µs (quartiles {us_text(m.q1_us)} and {us_text(m.q3_us)})",
        run.floors: f"{m.ratio:.2f}",
    }
    if m.largest_us:
        texts["slowest call"] = f"{us_text(m.largest_us)} µs"
    return {**texts, "edge": f"{m.edge:.1f}x" if m.edge else ""}
