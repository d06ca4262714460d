"""``tokendraw bench --html``: the page of this run, or with ``--from`` of an earlier one. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tokendraw import InvalidParameterError
from tokendraw.tools import PageSection, draw_chart, require_html, write_page
from tokendraw_bench import operations
from tokendraw_bench.sweeps import SWEEPS

MODULES = ("altair", "jinja2", "vl_convert")
"""Modules that pages need, of the extra ``html``."""
_MOST_PANELS = 12
_MEASURED = {"us": "µs", "ratio": "", "largest_us": "slowest µs", "host_us": "host µs"}
_MEASURED |= {"least_host_us": "least host µs", "extra_memory": "extra bytes", "edge": "edge"}
"""Titles of what was measured of a contender, by the key of JSON. A ratio has the floor for a title."""


def write_saved(ctx: click.Context, saved: Path, html: Path | None) -> None:
    """Write the page of a saved run, with ``--from``."""
    if html is None:
        raise click.UsageError("'--from' writes the page of --html. Add --html FILE.")
    for option in ctx.command.params:
        is_given = ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if is_given and option.name not in ("html", "saved"):
            raise click.UsageError(
                f"'{option.opts[0]}' is about a run, '--from' about an earlier one. Leave out one of them."
            )
    require_html(html, "tokendraw-bench", MODULES)
    try:
        report = json.loads(saved.read_text(encoding="utf-8"))
    except ValueError:
        raise _no_report("no JSON") from None
    if not isinstance(report, dict) or not (report.get("cells") or report.get("sweeps")):
        raise _no_report("no cells")
    try:
        write_report(html, report)
    except (KeyError, TypeError) as error:
        raise _no_report(f"an object of another form ({type(error).__name__}: {error})") from error


def _no_report(found: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"'--from' needs a file with the output of `tokendraw bench --json`, found {found}. Pass another file."
    )


def write_report(file: Path, report: Mapping[str, Any]) -> None:
    """Write the page of an object as of ``tokendraw bench --json``."""
    runs = report.get("sweeps", [report])
    sections, host = [_section(run) for run in runs], report["host"]
    subject, first = "sweeps" if "sweeps" in report else report["operation"], runs[0]
    texts = [
        f"{sum(len(run['cells']) for run in runs)} cells in {sum(run['seconds'] for run in runs):,.0f} s.",
        *dict.fromkeys([report["error"], *(run["busy"] for run in runs)]),
        ", ".join(f"{key} {value}" for key, value in {**host, **first["versions"]}.items() if value),
        f"Medians of {first['repeats']}, in turns; {first['method']}.",
        f"Threads: {first['threads']}, OMP_WAIT_POLICY {first['omp_wait_policy'] or 'unset'}.",
    ]
    title = f"tokendraw bench: {subject} on {host['name'] or host['device_type']}"
    write_page(file, title, [PageSection("", texts, [report["command"]]), *sections])


def _section(run: Mapping[str, Any]) -> PageSection:
    """Return the answers, the chart and the table of a run or a sweep."""
    contenders, cells, operation = run["contenders"], run["cells"], operations.get(run["operation"])
    floor, axes = operation.floor, [axis.field for axis in operation.axes if axis.field in cells[0]]
    varied = [axis for axis in axes if len({cell[axis] for cell in cells}) > 1]
    shown = varied + [key for key in cells[0] if key not in {*axes, "buffers", "nbytes", "entries", floor}]
    floors = f"{floor.replace('copy', 'copie')}s"
    across, points = _points(run, varied)
    answers, measured = "", []
    for name in contenders:
        entries = [cell["entries"][name] for cell in cells]
        measured += [(name, key) for key in _MEASURED if key == "us" or any(e.get(key) for e in entries)]
        if ratios := [entry["ratio"] for entry in entries if entry["ratio"]]:
            answers += f"{name} takes {min(ratios):.3g} to {max(ratios):.3g} {floors}. "
        if edges := [entry["edge"] for entry in entries if entry.get("edge")]:
            answers += f"Edges of {name}: {len(edges)}, up to {max(edges):.1f} times. "
    constants = {a: cells[0][a] for a in axes if a not in varied}
    constants |= {axis.field: run[axis.field] for axis in operation.axes if axis.field in run}
    notes = [note for note in run["notes"] if note != run["busy"]]
    return PageSection(
        title=run.get("title", "Times"),
        texts=[answers, *notes, f"In all cells: {_label(constants, list(constants))}."],
        chart=draw_chart(points, x=across, y=f"time, in {floors}") if points else None,
        columns=[*shown, f"{floor} µs", *(f"{n} {_MEASURED[key] or floors}" for n, key in measured)],
        rows=[
            [*(_value(cell.get(key)) for key in shown), cell[floor]["us"]]
            + [cell["entries"][name].get(key) for name, key in measured]
            for cell in cells
        ],
    )


def _points(run: Mapping[str, Any], varied: Sequence[str]) -> tuple[str, list[dict[str, Any]]]:
    """Return the swept or the first axis of numbers, and the ratios along it, in panels by the other axes.

    Without such an axis ("") ratios are beside the names of cells.
    """
    sweep, cells = SWEEPS.get(run.get("sweep", "")), run["cells"]
    by_priority = [*(axis for axis in (sweep.fields if sweep else ()) if axis in varied), *varied]
    numbers = (axis for axis in by_priority if all(type(cell[axis]) in (int, float) for cell in cells))
    across, panels = next(numbers, ""), list[str]()
    if across:  # what goes with it, such as the vocabularies of a preset, makes no panels
        lines = {axis: {(cell[across], cell[axis]) for cell in cells} for axis in varied}
        panels = [axis for axis in varied if len(lines[axis]) > len(lines[across])]
    labels = list(dict.fromkeys(_label(cell, panels) for cell in cells))[:_MOST_PANELS]
    return across, [
        {"x": cell[across] if across else _label(cell, varied), "y": entry["ratio"], "series": name}
        | {"panel": _label(cell, panels)}
        for cell in cells
        for name, entry in cell["entries"].items()
        if entry["ratio"] and _label(cell, panels) in labels
    ]


def _label(cell: Mapping[str, Any], axes: Sequence[str]) -> str:
    return ", ".join(f"{axis} {_value(cell[axis])}" for axis in axes)


def _value(value: Any) -> str | float:
    return value if type(value) in (int, float) else str(value).lower()
