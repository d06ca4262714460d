"""Prints the report of a run in words or as JSON, and writes it as a page, with commands that repeat parts of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click
import torch
from rich.table import Column, Table
from rich.text import Text

import tokendraw
from tokendraw.commands import candidate_json, command_line, host_json, print_json, print_lines, print_table
from tokendraw.plugin import Host
from tokendraw.resolution import Candidate
from tokendraw.tools import PageSection, write_page
from tokendraw_testing.kit.report import Line, Report, Status
from tokendraw_testing.kit.trial import FIRST_LOOK_P

_COLOURS: Final = dict(zip(Status, ("green", "red", "cyan", "yellow", "magenta"), strict=True))
_MOST_CASES: Final = 20
"""Failed random cases in words; JSON has all of them."""
_MOST_PLACES: Final = 3
"""Missed places in words; JSON has all of them."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What stands beside the report of a run, and where it goes."""

    context: click.Context
    again: Sequence[str]
    """Words that begin the command lines that repeat a part of the run."""
    host: Host
    candidates: Sequence[Candidate]
    """The samplers."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Further distributions of the run."""

    def show(self, report: Report, **figures: Any) -> bool:
        """Print a report; True if it has a line and no failure.

        :param figures: further entries of the JSON.
        """
        given, result = self.context.params, report.as_json()
        for entry, line in zip(result["lines"], report.lines, strict=True):
            entry["again"] = self._repeat(report, line)
        is_fine = report.passed and bool(report.lines)
        error = None if is_fine else _outcome(report)
        result = {"error": error, **result, **self._facts(), **figures, "only": list(given["only"]) or None}
        if given["as_json"]:
            print_json(result)
        else:
            self._print(report)
        if given["html"] is not None:
            title = f"tokendraw check: {report.title} on {report.device}"
            first = PageSection("", [*_closing(report), self._heading("")], [command_line(self.context)])
            write_page(given["html"], title, [first, *_sections(result)])
        return is_fine

    def _facts(self) -> dict[str, Any]:
        return {
            "command": command_line(self.context),
            "host": host_json(self.host),
            "candidate": candidate_json(self.candidates[0]) if len(self.candidates) == 1 else None,
            "tokendraw": tokendraw.__version__,
            "torch": str(torch.__version__),
            "gumbel_dtype": self.context.params["gumbel_dtype"],
            "heavy_imports": [],
        }

    def _heading(self, title: str) -> str:
        versions = {"tokendraw": tokendraw.__version__, **self.versions}
        for candidate in self.candidates:
            versions[candidate.distribution] = candidate.version
            if candidate.info and candidate.info.upstream and candidate.upstream_version:
                versions[candidate.info.upstream.distribution] = candidate.upstream_version
        versions["torch"] = str(torch.__version__)
        distributions = ", ".join(f"{name} {version}" for name, version in versions.items())
        gumbel_dtype = self.context.params["gumbel_dtype"]
        noise = f", {gumbel_dtype} noise" if gumbel_dtype else ""
        subject = f"{click.style(title, bold=True)} on " if title else ""
        return f"{subject}{self.host}{noise}: {distributions}"

    def _repeat(self, report: Report, *lines: Line) -> str:
        """Write the command that repeats lines: their random numbers depend on nothing else of the run."""
        words = [word for line in lines for word in line.again or ("--only", line.name)]
        seed = ["--seed", str(report.seed)] if report.seed and "--fuzz-case" not in words else []
        return shlex.join([*self.again, *seed, *words])

    def _print(self, report: Report) -> None:
        click.echo(f"{self._heading(report.title)}\n")
        if report.lines:
            _print_table(report)
            self._print_failures(report)
            click.echo()
        for sentence in _closing(report):
            click.echo(sentence)

    def _print_failures(self, report: Report) -> None:
        name_by_traceback: dict[str, str] = {}
        for line in _shown(report):
            click.echo(f"\n{click.style(line.name, bold=True, fg='red')}")
            facts = [("demanded", line.about)] if line.about else []
            facts.append(("found", line.detail))
            if line.traceback:
                first = name_by_traceback.setdefault(line.traceback, line.name)
                reference = f"the same place as in '{first}'"
                facts.append(("raised in", line.traceback.rstrip() if first == line.name else reference))
            print_table(("", ""), facts, indent=2)
            if line.again:
                click.echo(f"  Again: {self._repeat(report, line)}")
        if properties := [line for line in report.failed if not line.again]:
            click.echo(f"\nAgain: {self._repeat(report, *properties)}")


def _shown(report: Report) -> list[Line]:
    """Pick the failures for words: all properties, and the first cases."""
    return [line for i, line in enumerate(report.failed) if i < _MOST_CASES or not line.again]


def _print_table(report: Report) -> None:
    columns = [Column(heading, no_wrap=True) for heading in ("property", "status", "draws", "p-value")]
    columns[2].justify = columns[3].justify = "right"
    columns.append(Column("what was looked at", overflow="fold"))
    table = Table(*columns, box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for line in report.lines:
        draws, p = f"{line.draws:,}" if line.checks else "", line.p_value
        p_value = "" if p is None else f"{p:{'.3f' if p >= 0.001 else '.0e'}}"
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


def _outcome(report: Report) -> str:
    if not report.lines:
        return f"Nothing was checked: {report.sampler} advertises none of it."
    return f"{report.summary}."


def _closing(report: Report) -> Iterator[str]:
    """Yield the sentences at the end: what no line looked at, outcome, facts of the run, chance of a false alarm."""
    missed = report.missed
    if missed and report.lines:
        names = "; ".join(map(str, missed[:_MOST_PLACES]))
        more = f"; and {len(missed) - _MOST_PLACES} more" if len(missed) > _MOST_PLACES else ""
        looked = len(report.places) - len(missed)
        yield f"Rows looked at in {looked} of {len(report.places)} places, none in: {names}{more}."
    if left_out := len(report.failed) - len(_shown(report)):
        yield f"{left_out} more findings are in the output of --json."
    yield _outcome(report)
    if not report.lines:
        return
    time = f"{report.elapsed:.1f} s" + (f" in {report.jobs} processes" if report.jobs > 1 else "")
    facts = [f"{'Quick' if report.quick else 'Full'} run", f"seed {report.seed}", time]
    if report.checks:
        draws = sum(line.draws for line in report.lines)
        facts.append(f"{draws:,} draws for {report.checks:,} statistic{'s' if report.checks > 1 else ''}")
    yield f"{', '.join(facts)}."
    if report.checks:
        runs = f"at most one such run in {1 / report.false_alarm:,.0f}"
        yield f"By chance, a correct sampler fails {runs}."


def _sections(result: Mapping[str, Any]) -> Iterator[PageSection]:
    for line in result["lines"]:
        if line["status"] == "failed":
            codes = [line["traceback"], line["again"]]
            yield PageSection(line["name"], [line["about"], line["detail"]], codes)
    keys = ("name", "status", "draws", "p_value", "seconds", "detail")
    rows = [[line[key] for key in keys] for line in result["lines"]]
    yield PageSection("What was demanded, and what was looked at?", columns=keys, rows=rows)
