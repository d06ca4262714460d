"""Writes commands that repeat failed properties and random cases."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokendraw.plugin import GumbelDtype
    from tokendraw_testing.kit.fuzz_report import FuzzFinding, FuzzReport
    from tokendraw_testing.kit.report import Report


def command_for_failures(report: Report, gumbel_dtype: GumbelDtype | None) -> str:
    """Write the command that repeats the failed properties: each property has its own random numbers."""
    seed = ["--seed", str(report.seed)] if report.seed else []
    only = [part for line in report.failed for part in ("--only", line.name)]
    return shlex.join([*_command(report, gumbel_dtype), *seed, *only])


def command_for_finding(report: FuzzReport, finding: FuzzFinding, gumbel_dtype: GumbelDtype | None) -> str:
    """Write the command that repeats a random case: its random numbers depend on seed and number alone."""
    case = ["--operation", finding.operation, "--fuzz-case", f"{report.seed}:{finding.number}"]
    return shlex.join([*_command(report, gumbel_dtype), *case])


def _command(report: Report | FuzzReport, gumbel_dtype: GumbelDtype | None) -> list[str]:
    quick = ["--quick"] if report.quick else []
    noise = ["--gumbel-dtype", gumbel_dtype] if gumbel_dtype else []
    return ["tokendraw", "check", report.sampler, "--device", report.device, *quick, *noise]
