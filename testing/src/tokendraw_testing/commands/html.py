"""``tokendraw check --html``: the findings, the lines and the matrix of rows of a run as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokendraw.tools import PageSection, write_page


def write_report(
    file: Path, report: Mapping[str, Any], outcome: str, host: str, versions: Mapping[str, str]
) -> None:
    """Write the page of an object as of ``tokendraw check --json``, with a sentence about the outcome."""
    checks = sum(part["checks"] for part in ([report] if "checks" in report else report["lines"]))
    chance = (
        f" By chance, its {checks:,} statistics find fault with a correct sampler in at most one such run in"
    )
    cases = [f"{number:,} random cases of {name}" for name, number in report.get("cases", {}).items()]
    left_out = [f"none of {name}" for name in report.get("left_out", ())]
    processes = f" in {report['jobs']} processes" if report["jobs"] > 1 else ""
    texts = [
        outcome + (f"{chance} {1 / report['false_alarm']:,.0f}." if checks else ""),
        f"{', '.join(cases + left_out)}." if cases else "",
        f"{host}; {', '.join(f'{name} {version}' for name, version in versions.items())}.",
        f"A {'quick' if report['quick'] else 'full'} run with seed {report['seed']}; it took "
        f"{report['elapsed']:,.1f} s{processes}.",
    ]
    title = f"tokendraw check: {report['sampler']} on {report['device']}"
    write_page(file, title, [PageSection("", texts, [report["command"]]), *_sections(report)])


def _sections(report: Mapping[str, Any]) -> Iterator[PageSection]:
    lines, cases = report.get("lines", ()), report.get("findings", ())
    for found in [line for line in lines if line["status"] == "failed"] + [*cases]:
        times = f"{found['times']} cases differ in numbers alone." if found.get("times", 1) > 1 else ""
        title = found.get("name") or f"{found['operation']}, case {found['number']}"
        texts = [found.get("about", ""), found["detail"], times]
        yield PageSection(title, texts, [found.get("traceback", ""), found["again"]])
    if lines:
        keys = ("name", "status", "draws", "p_value", "seconds", "detail")
        rows = [[line[key] for key in keys] for line in lines]
        yield PageSection(title="What was demanded, and what was looked at?", columns=keys, rows=rows)
    missed = [{**place, "rows": 0} for place in report["missed"]]
    looked = [place for line in lines for place in line["looked"]] or report.get("looked", [])
    rows_of: Counter[tuple[str, ...]] = Counter()
    for place in [*missed, *looked]:
        ids = f"{place['up_to']:,}" if place["up_to"] else "any"
        rows_of[place["call"], place["dtype"], ids, place["kind"]] += place["rows"]
    yield PageSection(
        title="Which rows were looked at?",
        texts=[f"Rows in {sum(map(bool, rows_of.values())) or 'none'} of {len(rows_of)} places."],
        columns=("call", "dtype", "ids, up to", "kind of row", "rows"),
        rows=[[*place, rows] for place, rows in rows_of.items()],
    )
