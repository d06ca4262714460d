"""Writes the JSON of a run as a page of HTML: what ran on what, a chart for each question, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokendraw.commands import write_page
from tokendraw_bench.report.answers import edges
from tokendraw_bench.report.questions import Chart, charts, slowest_calls
from tokendraw_bench.report.records import RunRecord, text_of, title_of, us_text

MODULES = ("altair", "jinja2", "vl_convert")
"""Modules that pages need, of the extra ``html``."""

_ENTRY_COLUMNS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "us": ("µs", us_text),
    "ratio": ("", lambda ratio: f"{ratio:.2f}"),
    "largest_us": ("slowest µs", us_text),
    "host_us": ("host µs", us_text),
    "least_host_us": ("least host µs", us_text),
    "extra_memory": ("extra MB", lambda nbytes: f"{nbytes / 1e6:,.3f}"),
    "edge": ("edge", lambda growth: f"{growth:.1f}x"),
}
"""Titles and texts of what was measured of a contender, by the key of JSON. A ratio has the floor for a title."""


def write_report(file: Path, json: Mapping[str, Any]) -> None:
    """Write the page of an object as of ``tokendraw bench --json``."""
    from tokendraw_bench.report.drawings import drawing, javascript, legend

    sweeps = json.get("sweeps")
    runs = [RunRecord(run) for run in ([json] if sweeps is None else sweeps)]
    contenders = list(dict.fromkeys(name for run in runs for name in run.contenders))
    drawings: list[dict[str, Any]] = []

    def numbered(chart: Chart) -> dict[str, Any]:
        """Draw a chart, and return the chart with its number for the template."""
        drawings.append(drawing(chart, contenders))
        return {"chart": chart, "number": len(drawings) - 1}

    overall = slowest_calls(runs) if sweeps else None
    write_page(
        file,
        "tokendraw_bench.report",
        "bench.html",
        title=_title(json, runs),
        json=json,
        warnings=dict.fromkeys(run.json["busy"] for run in runs if run.json["busy"]),
        facts=list(_facts(json, runs)),
        overall=overall and numbered(overall),
        sections=[
            {
                "run": run.json,
                "constants": ", ".join(f"{name} {value}" for name, value in run.constants.items()),
                "charts": [numbered(chart) for chart in charts(run)],
                "edges": [m.edge for m in edges(run)],
                "notes": [note for note in run.json.get("notes", ()) if note != run.json["busy"]],
                "columns": list(_columns(run)),
                "rows": list(_rows(run)),
            }
            for run in runs
        ],
        legend=legend(contenders),
        drawings=drawings,
        javascript=javascript(),
    )


def _title(json: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    host = json["host"]
    subject = "sweeps" if "sweeps" in json else runs[0].operation.name
    return f"tokendraw bench: {subject} on {host['name'] or host['device_type']}"


def _facts(json: Mapping[str, Any], runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    """Yield titled facts about the device, the versions and the method."""
    host = json["host"]
    parts = [host["name"], host["compute_capability"] and f"compute capability {host['compute_capability']}"]
    parts += [host["rocm_arch"], host["sm_count"] and f"{host['sm_count']} SMs"]
    parts += [host["cuda_version"] and f"CUDA {host['cuda_version']}"]
    yield "device", ", ".join([host["device_type"], *filter(None, parts)])
    if not runs:
        return
    versions = {name: version for run in runs for name, version in run.json["versions"].items()}
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    first = runs[0].json
    yield "times", f"medians of {first['repeats']}, in turns; {first['method']}"
    if host["device_type"] == "cpu":
        policy = first["omp_wait_policy"] or "unset"
        yield "threads", f"{first['threads']} on {first['cores']} cores, OMP_WAIT_POLICY {policy}"
    if len(runs) == 1:
        yield "all cells", ", ".join(f"{name} {value}" for name, value in runs[0].constants.items())
    yield "took", f"{sum(run.json['seconds'] for run in runs):,.0f} s"


def _columns(run: RunRecord) -> Iterator[dict[str, Any]]:
    """Yield the columns of the table of a run."""
    for axis in run.axes:
        yield {"title": title_of(axis), "is_number": not axis.choices}
    for title in (*run.figures, f"{run.floor} µs"):
        yield {"title": title, "is_number": True}
    for name in run.contenders:
        for key in _measured(run, name):
            yield {"title": f"{name} {_ENTRY_COLUMNS[key][0] or run.floors}", "is_number": True}


def _rows(run: RunRecord) -> Iterator[list[dict[str, Any]]]:
    for cell in run.cells:
        row = [_cell(cell[axis.field], text_of) for axis in run.axes]
        row += [_cell(cell.get(figure), lambda value: f"{value:,.0f}") for figure in run.figures]
        row.append(_cell(cell[run.floor]["us"], us_text))
        for name in run.contenders:
            entry = cell["entries"][name]
            row += [_cell(entry.get(key), _ENTRY_COLUMNS[key][1]) for key in _measured(run, name)]
            if entry["reason"]:
                row[-len(_measured(run, name))]["note"] = entry["reason"]
        yield row


def _measured(run: RunRecord, name: str) -> list[str]:
    """List the keys of a contender's entries that have a value anywhere, its time first of all."""
    entries = [cell["entries"][name] for cell in run.cells]
    return [key for key in _ENTRY_COLUMNS if key == "us" or any(entry.get(key) for entry in entries)]


def _cell(value: Any, text: Callable[[Any], str]) -> dict[str, Any]:
    """Return a cell of a table, empty and last in every order where there is no value."""
    is_known = value is not None and value == value  # a ratio may be NaN
    return {"text": text(value) if is_known else "-", "value": value if is_known else ""}
