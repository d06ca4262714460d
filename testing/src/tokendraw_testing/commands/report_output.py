"""Prints the report of a run, as JSON or in words, or writes a page; with commands that repeat properties and cases."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokendraw
from tokendraw.commands import candidate_json, host_json, print_json
from tokendraw.resolution import Candidate
from tokendraw_testing.commands.check_lines import outcome, print_report
from tokendraw_testing.commands.fuzz_lines import (
    fuzz_outcome,
    kept_sets_outcome,
    print_fuzz_report,
    print_kept_sets,
)
from tokendraw_testing.commands.html import write_report

if TYPE_CHECKING:
    from tokendraw.plugin import GumbelDtype
    from tokendraw_testing import Subject
    from tokendraw_testing.kept_sets import KeptSets
    from tokendraw_testing.kit.report import FuzzFinding, FuzzReport, Report


@dataclass(frozen=True, kw_only=True)
class ReportOutput:
    """Names the subject and the versions of a run, and prints its report."""

    subject: Subject
    candidate: Candidate
    gumbel_dtype: GumbelDtype | None
    command: str
    """The command line of the run."""
    as_json: bool
    html: Path | None
    """File for the page; None: no page."""

    def lines(self, report: Report, only: Sequence[str]) -> bool:
        """Print the lines of properties; True if there is a line and no line failed.

        :param only: names of the properties that were asked for; empty: all.
        """
        is_fine = report.passed and bool(report.lines)
        result = report.as_json()
        for entry in result["lines"]:
            entry["again"] = _command_for_lines(report, [entry["name"]], self.gumbel_dtype)
        error = None if is_fine else outcome(report)
        result = {"error": error, **result, **self._facts(), "only": list(only) or None}
        if self.as_json:
            print_json(result)
        else:
            names = [line.name for line in report.failed]
            command = _command_for_lines(report, names, self.gumbel_dtype)
            print_report(report, self._host(), self._versions(), command)
        self._write(result, outcome(report))
        return is_fine

    def cases(self, report: FuzzReport) -> bool:
        """Print random cases; True without a finding."""
        commands = {
            finding: _command_for_finding(report, finding, self.gumbel_dtype) for finding in report.findings
        }
        result = report.as_json()
        for entry, command in zip(result["findings"], commands.values(), strict=True):
            entry["again"] = command
        error = fuzz_outcome(report) if report.findings else None
        result = {"error": error, **result, **self._facts()}
        if self.as_json:
            print_json(result)
        else:
            print_fuzz_report(report, self._host(), self._versions(), commands)
        self._write(result, fuzz_outcome(report))
        return not report.findings

    def kept_sets(self, result: KeptSets) -> bool:
        """Print the counts of kept sets; True without a wrong row."""
        if self.as_json:
            error = None if result.passed else kept_sets_outcome(result)
            print_json({"error": error, **result.as_json(), **self._facts(), "seed": self.subject.seed})
        else:
            print_kept_sets(result, self.subject.name, self._host(), self._versions())
        return result.passed

    def _write(self, result: Mapping[str, Any], outcome: str) -> None:
        """Write the page, with ``--html``."""
        if self.html is not None:
            write_report(self.html, result, outcome, self._host(), self._versions())

    def _facts(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "host": host_json(self.subject.host),
            "candidate": candidate_json(self.candidate),
            "tokendraw": tokendraw.__version__,
            "torch": _torch_version(),
            "gumbel_dtype": self.gumbel_dtype,
            "heavy_imports": [],
        }

    def _host(self) -> str:
        noise = f", {self.gumbel_dtype} noise" if self.gumbel_dtype else ""
        return f"{self.subject.host}{noise}"

    def _versions(self) -> dict[str, str]:
        """Return the version of each distribution of the run."""
        candidate = self.candidate
        versions = {"tokendraw": tokendraw.__version__, candidate.distribution: candidate.version}
        if candidate.info and candidate.info.upstream and candidate.upstream_version:
            versions[candidate.info.upstream.distribution] = candidate.upstream_version
        return versions | {"torch": _torch_version()}


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _command_for_lines(report: Report, names: Sequence[str], gumbel_dtype: GumbelDtype | None) -> str:
    """Write the command that repeats some properties: each property has its own random numbers."""
    seed = ["--seed", str(report.seed)] if report.seed else []
    only = [part for name in names for part in ("--only", name)]
    return shlex.join([*_command(report, gumbel_dtype), *seed, *only])


def _command_for_finding(report: FuzzReport, finding: FuzzFinding, gumbel_dtype: GumbelDtype | None) -> str:
    """Write the command that repeats a random case: its random numbers depend on seed and number alone."""
    case = ["--operation", finding.operation, "--fuzz-case", f"{report.seed}:{finding.number}"]
    return shlex.join([*_command(report, gumbel_dtype), *case])


def _command(report: Report | FuzzReport, gumbel_dtype: GumbelDtype | None) -> list[str]:
    quick = ["--quick"] if report.quick else []
    noise = ["--gumbel-dtype", gumbel_dtype] if gumbel_dtype else []
    return ["tokendraw", "check", report.sampler, "--device", report.device, *quick, *noise]
