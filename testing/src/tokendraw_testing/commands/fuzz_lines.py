"""Prints a report of random cases: cases by operation, findings, and the command that repeats each finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from tokendraw.commands import print_table
from tokendraw_testing.commands.check_lines import heading
from tokendraw_testing.commands.matrix_lines import print_matrix

if TYPE_CHECKING:
    from tokendraw_testing.kept_sets import KeptSets
    from tokendraw_testing.kit.report import FuzzFinding, FuzzReport

_MOST_SHOWN = 20


def print_fuzz_report(
    report: FuzzReport, host: str, versions: Mapping[str, str], repeat_commands: Mapping[FuzzFinding, str]
) -> None:
    """Print all of a report on stdout.

    :param host: the device and what is known about it.
    :param versions: version of each distribution that took part.
    :param repeat_commands: the command that repeats each finding.
    """
    click.echo(heading(report.sampler, host, versions))
    click.echo()
    rows = [
        (name, f"{cases:,}", f"{sum(f.operation == name for f in report.findings):,}")
        for name, cases in report.cases.items()
    ]
    reason = "not looked at: the kit has no random cases of it"
    rows_without_cases = [(name, "", reason) for name in report.left_out]
    print_table(("operation", "cases", "findings"), [*rows, *rows_without_cases])
    print_matrix([("random cases", report.looked)], report.places)
    for finding in report.findings[:_MOST_SHOWN]:
        _print_finding(finding, repeat_commands[finding])
    click.echo()
    _print_end(report)


def _print_finding(finding: FuzzFinding, repeat_command: str) -> None:
    click.echo()
    click.echo(click.style(f"{finding.operation}, case {finding.number}", bold=True, fg="red"))
    facts = [("found", finding.detail)]
    if finding.traceback:
        facts.append(("raised in", finding.traceback.rstrip()))
    if finding.times > 1:
        facts.append(("times", f"{finding.times}, which differ in numbers alone"))
    print_table(("", ""), facts, indent=2)
    click.echo(f"  Again: {repeat_command}")


def fuzz_outcome(report: FuzzReport) -> str:
    """Count the findings and random cases of a report, in a sentence."""
    cases, findings = sum(report.cases.values()), len(report.findings)
    word = "finding" if findings == 1 else "findings"
    return f"{findings or 'No'} {word} in {cases:,} case{'' if cases == 1 else 's'}."


def _print_end(report: FuzzReport) -> None:
    if len(report.findings) > _MOST_SHOWN:
        click.echo(f"{len(report.findings) - _MOST_SHOWN} more findings are in the output of --json.")
    click.echo(fuzz_outcome(report))
    processes = f" in {report.jobs} processes" if report.jobs > 1 else ""
    sizes = "Quick" if report.quick else "Full"
    click.echo(f"{sizes} sizes, seed {report.seed}, {report.elapsed:.1f} s{processes}.")
    if report.checks:
        click.echo(
            f"By chance, the {report.checks:,} statistics of a correct sampler give a finding in at most one such run "
            f"in {1 / report.false_alarm:,.0f}."
        )


def print_kept_sets(result: KeptSets, sampler: str, host: str, versions: Mapping[str, str]) -> None:
    """Print the counts of a sweep by operation and way, and the first wrong rows."""
    click.echo(heading(sampler, host, versions))
    click.echo()
    rows = [
        (way, f"{count.rows:,}", f"{count.wrong:,}", f"{count.uncertain:,}", f"{count.worst_ratio:.4g}")
        for way, count in sorted(result.counts.items())
    ]
    print_table(("way", "rows", "wrong", "uncertain", "worst mass"), rows)
    for finding in result.findings:
        click.echo(f"\n{finding}")
    click.echo(
        f"\nPlaces of tokens in their kept sets, by mass: p = {result.places.p_value:.2g} of {result.places.draws:,}."
    )
    click.echo(f"Of {result.seeded:,} seeded rows, {result.others:,} draw another token without thresholds.")
    click.echo(kept_sets_outcome(result))


def kept_sets_outcome(result: KeptSets) -> str:
    """Count the wrong rows and all rows of a sweep, in a sentence."""
    wrong = sum(count.wrong for count in result.counts.values())
    outcome = f"{wrong:,} of {result.rows:,} rows wrong, in {result.batches:,} batches."
    return outcome if wrong or result.passed else f"{outcome} But {result.fault}."
