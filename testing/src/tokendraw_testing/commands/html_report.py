"""Writes the JSON of a run of ``tokendraw check`` as a page of HTML: findings, lines, and the matrix of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tokendraw.commands import require_html, write_page
from tokendraw.plugin import INPUT_DTYPES
from tokendraw_testing.kit.matrix import WIDTHS

_SHADES = ((1, "1 to 9"), (10, "10 to 99"), (100, "100 to 999"), (1000, "1,000 or more"))
"""Least rows of each shade of the matrix, and its words."""

_Counts: TypeAlias = dict[tuple[str, int | None, str], int]
"""Rows of a call by dtype, width and kind."""
_Json: TypeAlias = Mapping[str, Any]


def require_page(file: Path) -> None:
    """Check that a page can be written, as :func:`tokendraw.commands.require_html` does."""
    require_html(file, "tokendraw-testing", ("jinja2",))


def write_report(file: Path, json: _Json, outcome: str, host: str, versions: Mapping[str, str]) -> None:
    """Write the page of an object as of ``tokendraw check --json``.

    :param outcome: counts what was found, in a sentence.
    :param host: the device and what is known about it.
    :param versions: version of each distribution that took part.
    """
    coverages = [(line["name"], line["looked"]) for line in json["lines"]] if "lines" in json else []
    if "findings" in json:
        coverages = [("random cases", json["looked"])]
    write_page(
        file,
        "tokendraw_testing.commands",
        "check.html",
        title=f"tokendraw check: {json['sampler']} on {json['device']}",
        json=json,
        facts=list(_facts(json, host, versions)),
        outcome=outcome,
        chance=_chance(json),
        findings=list(_findings(json)),
        lines=[_line_row(line) for line in json.get("lines", ())],
        line_columns=_columns("property", "status", "*draws", "*p-value", "*seconds", "what was looked at"),
        cases=[_case_row(name, cases, json) for name, cases in json.get("cases", {}).items()],
        case_columns=_columns("operation", "*random cases", "*findings"),
        matrices=list(_matrices(coverages, json["missed"])),
        shades=[words for _, words in _SHADES],
    )


def _columns(*titles: str) -> list[dict[str, Any]]:
    """Return columns; a star before a title says that the column holds numbers."""
    return [{"title": title.removeprefix("*"), "is_number": title.startswith("*")} for title in titles]


def _facts(json: _Json, host: str, versions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield titled facts about the device, the versions and the run."""
    yield "device", host
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "run", f"{'quick' if json['quick'] else 'full'}, seed {json['seed']}"
    processes = f" in {json['jobs']} processes" if json["jobs"] > 1 else ""
    yield "took", f"{json['elapsed']:,.1f} s{processes}"


def _chance(json: _Json) -> str:
    """Say how often chance alone makes a finding; "" without statistics."""
    counts = [json] if "checks" in json else json["lines"]
    if not (checks := sum(count["checks"] for count in counts)):
        return ""
    runs = f"{1 / json['false_alarm']:,.0f}"
    return f"By chance, its {checks:,} statistics find fault with a correct sampler in at most one such run in {runs}."


def _findings(json: _Json) -> Iterator[dict[str, Any]]:
    """Yield failed lines and random cases, with a title and the demand."""
    for line in json.get("lines", ()):
        if line["status"] == "failed":
            yield {**line, "title": line["name"], "times": 1}
    for finding in json.get("findings", ()):
        yield {**finding, "title": f"{finding['operation']}, case {finding['number']}", "about": ""}


def _line_row(line: _Json) -> list[Any]:
    p_value = line["p_value"]
    text = "" if p_value is None else f"{p_value:.3f}" if p_value >= 0.001 else f"{p_value:.0e}"
    style = {"passed": "good", "failed": "bad"}.get(line["status"], "muted")
    return [
        {"text": line["name"], "note": line["about"]},
        {"text": line["status"], "style": style},
        {"text": f"{line['draws']:,}" if line["checks"] else "", "value": line["draws"] or ""},
        {"text": text, "value": p_value, "note": line["worst"]},
        {"text": f"{line['seconds']:.1f}", "value": line["seconds"]},
        {"text": line["detail"], "style": "words"},
    ]


def _case_row(operation: str, cases: int, json: _Json) -> list[Any]:
    findings = sum(finding["operation"] == operation for finding in json["findings"])
    return [operation, {"text": f"{cases:,}", "value": cases}, {"text": str(findings), "value": findings}]


def _matrices(
    coverages: Sequence[tuple[str, Sequence[_Json]]], missed: Sequence[_Json]
) -> Iterator[dict[str, Any]]:
    """Yield the matrix of each call: columns by dtype, width and kind, and the rows that each line looked at."""
    places = [*(place for _, looked in coverages for place in looked), *missed]
    for call in dict.fromkeys(place["call"] for place in places):
        of_call = [place for place in places if place["call"] == call]
        dtypes = sorted({place["dtype"] for place in of_call}, key=_dtype_order)
        kinds = sorted({place["kind"] for place in of_call})
        keys = {(place["dtype"], place["up_to"], place["kind"]) for place in of_call}
        columns = [(d, w, k) for d in dtypes for w in WIDTHS for k in kinds if (d, w, k) in keys]
        rows = [(name, _counts(looked, call)) for name, looked in coverages]
        rows = [(name, counts) for name, counts in rows if counts]
        total = _counts([place for _, looked in coverages for place in looked], call)
        if len(rows) > 1:
            rows.append(("any line", total))
        yield {
            "call": call,
            "covered": sum(column in total for column in columns),
            "columns": columns,
            "dtypes": [(dtype, sum(column[0] == dtype for column in columns)) for dtype in dtypes],
            "widths": [
                ("more" if width is None else f"{width >> 10}K", span)
                for dtype in dtypes
                for width in WIDTHS
                if (span := sum(column[:2] == (dtype, width) for column in columns))
            ],
            "kinds": kinds,
            "rows": [(name, [_matrix_cell(column, counts) for column in columns]) for name, counts in rows],
        }


def _dtype_order(dtype: str) -> tuple[bool, int, str]:
    is_known = dtype in INPUT_DTYPES
    return not is_known, INPUT_DTYPES.index(dtype) if is_known else 0, dtype


def _counts(looked: Sequence[_Json], call: str) -> _Counts:
    counts: _Counts = {}
    for place in looked:
        if place["call"] == call:
            key = place["dtype"], place["up_to"], place["kind"]
            counts[key] = counts.get(key, 0) + place["rows"]
    return counts


def _matrix_cell(column: tuple[str, int | None, str], counts: _Counts) -> dict[str, Any]:
    """Return the kind, the shade (0: no row) and a sentence."""
    dtype, width, kind = column
    rows = counts.get(column, 0)
    ids = "wider vocabularies" if width is None else f"vocabularies up to {width:,} ids"
    return {
        "kind": kind,
        "shade": sum(rows >= least for least, _ in _SHADES),
        "note": f"{rows:,} {kind} rows in {dtype}, {ids}",
    }
