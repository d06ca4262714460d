"""Prints a report of the conformance kit: a line for each property, failures in full, and the facts of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from tokendraw.commands import print_lines, print_table
from tokendraw_testing.commands.matrix_lines import print_matrix

if TYPE_CHECKING:
    from tokendraw_testing.kit.report import Line, Report

_COLOURS = {"passed": "green", "failed": "red", "refused": "cyan", "not run": "yellow"}
_COLOURS["expected to fail"] = "magenta"


def print_report(report: Report, host: str, versions: Mapping[str, str], repeat_command: str) -> None:
    """Print all of a report on stdout.

    :param host: the device and what is known about it.
    :param versions: version of each distribution that took part.
    :param repeat_command: the command that repeats the failed lines.
    """
    click.echo(heading(report.title, host, versions))
    click.echo()
    if report.lines:
        _print_lines(report)
        print_matrix([(line.name, line.looked) for line in report.lines], report.places)
        _print_failures(report, repeat_command)
        click.echo()
    _print_end(report)


def heading(sampler: str, host: str, versions: Mapping[str, str]) -> str:
    """Name the sampler, the host, and the distributions of a run."""
    distributions = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{click.style(sampler, bold=True)} on {host}: {distributions}"


def _print_lines(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("property", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("draws", no_wrap=True, justify="right")
    table.add_column("p-value", no_wrap=True, justify="right")
    table.add_column("what was looked at", overflow="fold")
    for line in report.lines:
        draws = f"{line.draws:,}" if line.checks else ""
        status = Text(line.status, style=_COLOURS[line.status])
        table.add_row(Text(line.name), status, draws, _p_value(line), Text(_detail(line)))
    print_lines(table)


def _detail(line: Line) -> str:
    from tokendraw_testing.kit.trial import FIRST_LOOK_P

    if line.status == "failed":
        return "see below"
    if line.status == "refused":
        return "not advertised; requests for it are refused"
    if line.p_value is not None and line.p_value < FIRST_LOOK_P:
        return f"{line.detail}; a second look cleared {line.worst}"
    return line.detail


def _p_value(line: Line) -> str:
    if line.p_value is None:
        return ""
    return f"{line.p_value:.3f}" if line.p_value >= 0.001 else f"{line.p_value:.0e}"


def _print_failures(report: Report, repeat_command: str) -> None:
    line_by_traceback: dict[str, str] = {}
    for line in report.failed:
        click.echo()
        click.echo(click.style(line.name, bold=True, fg="red"))
        facts = [("demanded", line.about), ("found", line.detail)]
        if line.traceback:
            first = line_by_traceback.setdefault(line.traceback, line.name)
            reference = f"the same place as in '{first}'"
            facts.append(("raised in", line.traceback.rstrip() if first == line.name else reference))
        print_table(("", ""), facts, indent=2)
    if report.failed:
        click.echo()
        click.echo(f"Again: {repeat_command}")


def outcome(report: Report) -> str:
    """Count the lines of a report by their status, in a sentence."""
    nothing = f"Nothing was checked: {report.sampler} advertises none of it."
    return f"{report.summary}." if report.lines else nothing


def _print_end(report: Report) -> None:
    click.echo(outcome(report))
    if not report.lines:
        return
    draws, checks = (sum(getattr(line, name) for line in report.lines) for name in ("draws", "checks"))
    time = f"{report.elapsed:.1f} s" + (f" in {report.jobs} processes" if report.jobs > 1 else "")
    facts = ["Quick run" if report.quick else "Full run", f"seed {report.seed}", time]
    if checks:
        facts.append(f"{draws:,} draws for {checks} statistic{'s' if checks > 1 else ''}")
    click.echo(f"{', '.join(facts)}.")
    if checks:
        runs = f"{1 / report.false_alarm:,.0f}"
        click.echo(f"By chance, a correct sampler fails at most one such run in {runs}.")
