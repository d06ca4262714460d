"""Prints the report of a run in words or as JSON, and writes it as a page, with commands that repeat parts of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from rich.table import Table
from rich.text import Text

import tokendraw
from tokendraw.commands import candidate_json, host_json, print_json, print_lines, print_table
from tokendraw.plugin import Host
from tokendraw.resolution import Candidate
from tokendraw.tools import PageSection, write_page
from tokendraw_testing.kept_sets import KeptSets
from tokendraw_testing.kit.report import FuzzFinding, FuzzReport, Line, Place, Report
from tokendraw_testing.kit.trial import FIRST_LOOK_P

_COLOURS = {"passed": "green", "failed": "red", "refused": "cyan", "not run": "yellow"}
_COLOURS["expected to fail"] = "magenta"
_MOST_FINDINGS = 20
"""Findings in words; JSON has all of them."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What stands beside the report of a run, and where it goes."""

    command: str
    """Command line of the run."""
    again: Sequence[str]
    """Words that begin the command lines that repeat a part of the run."""
    host: Host
    candidates: Sequence[Candidate]
    """The samplers."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Further distributions of the run."""
    gumbel_dtype: str | None = None
    as_json: bool
    html: Path | None
    """File for the page; None: no page."""

    def show(self, report: Report | FuzzReport, only: Sequence[str] = ()) -> bool:
        """Print a report; True if it has a line and no failure.

        :param only: names of the properties that were asked for; empty: all.
        """
        result = report.as_json()
        for entry in result["findings"] if isinstance(report, FuzzReport) else result["lines"]:
            entry["again"] = self._repeat(report, entry)
        is_fine = report.passed and (isinstance(report, FuzzReport) or bool(report.lines))
        result = {"error": None if is_fine else _outcome(report), **result, **self._facts()}
        if isinstance(report, Report):
            result["only"] = list(only) or None
        if self.as_json:
            print_json(result)
        else:
            self._print(report)
        if self.html is not None:
            title = f"tokendraw check: {report.title} on {report.device}"
            texts = [*_closing(report), self._heading("")]
            write_page(self.html, title, [PageSection("", texts, [self.command]), *_sections(report, result)])
        return is_fine

    def show_kept_sets(self, result: KeptSets, sampler: str, seed: int) -> bool:
        """Print the counts of a sweep by operation and way, and the first wrong rows; True if no row is wrong."""
        wrong = sum(count.wrong for count in result.counts.values())
        outcome = f"{wrong:,} of {result.rows:,} rows wrong, in {result.batches:,} batches."
        if not wrong and not result.passed:
            outcome += f" But {result.fault}."
        if self.as_json:
            error = None if result.passed else outcome
            print_json({"error": error, **result.as_json(), **self._facts(), "seed": seed})
            return result.passed
        click.echo(f"{self._heading(sampler)}\n")
        rows = [
            (way, f"{count.rows:,}", f"{count.wrong:,}", f"{count.uncertain:,}", f"{count.worst_ratio:.4g}")
            for way, count in sorted(result.counts.items())
        ]
        print_table(("way", "rows", "wrong", "uncertain", "worst mass"), rows)
        for finding in result.findings:
            click.echo(f"\n{finding}")
        p, number = result.places.p_value, result.places.draws
        click.echo(f"\nPlaces of tokens in their kept sets, by mass: p = {p:.2g} of {number:,}.")
        click.echo(
            f"Of {result.seeded:,} seeded rows, {result.others:,} draw another token without thresholds."
        )
        click.echo(outcome)
        return result.passed

    def _facts(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "host": host_json(self.host),
            "candidate": candidate_json(self.candidates[0]) if len(self.candidates) == 1 else None,
            "tokendraw": tokendraw.__version__,
            "torch": str(torch.__version__),
            "gumbel_dtype": self.gumbel_dtype,
            "heavy_imports": [],
        }

    def _heading(self, title: str) -> str:
        """Name what was checked, the host, and the distributions of the run."""
        versions = {"tokendraw": tokendraw.__version__, **self.versions}
        for candidate in self.candidates:
            versions[candidate.distribution] = candidate.version
            if candidate.info and candidate.info.upstream and candidate.upstream_version:
                versions[candidate.info.upstream.distribution] = candidate.upstream_version
        versions["torch"] = str(torch.__version__)
        distributions = ", ".join(f"{name} {version}" for name, version in versions.items())
        noise = f", {self.gumbel_dtype} noise" if self.gumbel_dtype else ""
        subject = f"{click.style(title, bold=True)} on " if title else ""
        return f"{subject}{self.host}{noise}: {distributions}"

    def _repeat(self, report: Report | FuzzReport, *entries: Mapping[str, Any]) -> str:
        """Write the command that repeats lines or a case: their random numbers depend on nothing else of the run."""
        words = ["--seed", str(report.seed)] if report.seed else []
        words += [word for entry in entries if "name" in entry for word in ("--only", entry["name"])]
        if isinstance(report, FuzzReport):
            (case,) = entries
            words = ["--operation", case["operation"], "--fuzz-case", f"{report.seed}:{case['number']}"]
        return shlex.join([*self.again, *words])

    def _print(self, report: Report | FuzzReport) -> None:
        click.echo(f"{self._heading(report.title)}\n")
        if isinstance(report, FuzzReport) or report.lines:
            _print_table(report)
            _print_places(report)
            self._print_failures(report)
            click.echo()
        for sentence in _closing(report):
            click.echo(sentence)

    def _print_failures(self, report: Report | FuzzReport) -> None:
        name_by_traceback: dict[str, str] = {}
        for found in report.failed[: _MOST_FINDINGS if isinstance(report, FuzzReport) else None]:
            click.echo(f"\n{click.style(found.name, bold=True, fg='red')}")
            facts = [("demanded", found.about)] if isinstance(found, Line) else []
            facts.append(("found", found.detail))
            if found.traceback:
                first = name_by_traceback.setdefault(found.traceback, found.name)
                reference = f"the same place as in '{first}'"
                facts.append(("raised in", found.traceback.rstrip() if first == found.name else reference))
            if isinstance(found, FuzzFinding) and found.times > 1:
                facts.append(("times", f"{found.times}, which differ in numbers alone"))
            print_table(("", ""), facts, indent=2)
            if isinstance(found, FuzzFinding):
                click.echo(f"  Again: {self._repeat(report, vars(found))}")
        if isinstance(report, Report) and report.failed:
            click.echo(f"\nAgain: {self._repeat(report, *map(vars, report.failed))}")


def _print_table(report: Report | FuzzReport) -> None:
    if isinstance(report, FuzzReport):
        rows = [
            (name, f"{cases:,}", f"{sum(finding.operation == name for finding in report.findings):,}")
            for name, cases in report.cases.items()
        ]
        rows += [(name, "", "not looked at: the kit has no random cases of it") for name in report.left_out]
        print_table(("operation", "cases", "findings"), rows)
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("property", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("draws", no_wrap=True, justify="right")
    table.add_column("p-value", no_wrap=True, justify="right")
    table.add_column("what was looked at", overflow="fold")
    for line in report.lines:
        draws = f"{line.draws:,}" if line.checks else ""
        p_value = (
            "" if line.p_value is None else f"{line.p_value:{'.3f' if line.p_value >= 0.001 else '.0e'}}"
        )
        status = Text(line.status, style=_COLOURS[line.status])
        table.add_row(Text(line.name), status, draws, p_value, Text(_detail(line)))
    print_lines(table)


def _detail(line: Line) -> str:
    if line.status == "failed":
        return "see below"
    if line.status == "refused":
        return "not advertised; requests for it are refused"
    if line.p_value is not None and line.p_value < FIRST_LOOK_P:
        return f"{line.detail}; a second look cleared {line.worst}"
    return line.detail


def _print_places(report: Report | FuzzReport) -> None:
    """Print a table for each call: a letter for each kind of row that was looked at, by dtype and vocabulary."""
    looked = dict(report.looked)
    for call in dict.fromkeys(place.call for place in report.places):
        places = [place for place in report.places if place.call == call]
        count = sum(place in looked for place in places)
        legend = ", ".join(f"{kind[0]} {kind}" for kind in dict.fromkeys(place.kind for place in places))
        places_looked = f"rows looked at in {count or 'none'} of {len(places)} places ({legend})"
        click.echo(f"\n{click.style(call, bold=True)}: {places_looked}")
        letters: dict[str, dict[str, str]] = {}
        for place in places:
            cells, width = letters.setdefault(place.dtype, {}), _width(place)
            cells[width] = cells.get(width, "") + (place.kind[0] if place in looked else ".")
        if count:
            rows = [(dtype, *cells.values()) for dtype, cells in letters.items()]
            print_table(("ids in the vocabulary, up to", *letters[places[0].dtype]), rows)


def _width(place: Place) -> str:
    return "more" if place.up_to is None else f"{place.up_to >> 10}K"


def _outcome(report: Report | FuzzReport) -> str:
    """Count lines, or findings and cases, in a sentence."""
    if isinstance(report, Report) and not report.lines:
        return f"Nothing was checked: {report.sampler} advertises none of it."
    return f"{report.summary}."


def _closing(report: Report | FuzzReport) -> Iterator[str]:
    """Yield the sentences at the end: outcome, facts of the run, chance of a false alarm."""
    is_fuzz = isinstance(report, FuzzReport)
    if is_fuzz and len(report.failed) > _MOST_FINDINGS:
        yield f"{len(report.failed) - _MOST_FINDINGS} more findings are in the output of --json."
    yield _outcome(report)
    if isinstance(report, Report) and not report.lines:
        return
    kind = f"{'Quick' if report.quick else 'Full'} {'sizes' if is_fuzz else 'run'}"
    time = f"{report.elapsed:.1f} s" + (f" in {report.jobs} processes" if report.jobs > 1 else "")
    facts = [kind, f"seed {report.seed}", time]
    if isinstance(report, Report) and report.checks:
        draws = sum(line.draws for line in report.lines)
        facts.append(f"{draws:,} draws for {report.checks} statistic{'s' if report.checks > 1 else ''}")
    yield f"{', '.join(facts)}."
    if report.checks:
        runs = f"at most one such run in {1 / report.false_alarm:,.0f}"
        statistics = f"the {report.checks:,} statistics of a correct sampler give a finding in"
        yield f"By chance, {statistics if is_fuzz else 'a correct sampler fails'} {runs}."


def _sections(report: Report | FuzzReport, result: Mapping[str, Any]) -> Iterator[PageSection]:
    """Yield the parts of a page: failures, lines or cases, and places."""
    for entry in result.get("findings") or result.get("lines", ()):
        if entry.get("status", "failed") == "failed":
            times = f"{entry['times']} cases differ in numbers alone." if entry.get("times", 1) > 1 else ""
            title = entry.get("name") or f"{entry['operation']}, case {entry['number']}"
            texts = [entry.get("about", ""), entry["detail"], times]
            yield PageSection(title, texts, [entry["traceback"], entry["again"]])
    if isinstance(report, FuzzReport):
        cases = [f"{number:,} random cases of {name}" for name, number in report.cases.items()]
        left_out = [f"none of {name}" for name in report.left_out]
        yield PageSection("What was looked at?", [f"{', '.join(cases + left_out)}."])
    else:
        keys = ("name", "status", "draws", "p_value", "seconds", "detail")
        rows = [[line[key] for key in keys] for line in result["lines"]]
        yield PageSection("What was demanded, and what was looked at?", columns=keys, rows=rows)
    looked = dict(report.looked)
    yield PageSection(
        "Which rows were looked at?",
        [f"Rows in {len(looked) or 'none'} of {len(report.places)} places."],
        columns=("call", "dtype", "ids, up to", "kind of row", "rows"),
        rows=[
            [each.call, each.dtype, _width(each), each.kind, looked.get(each, 0)] for each in report.places
        ],
    )
