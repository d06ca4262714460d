"""The report of a run of random cases."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tokendraw_testing.kit.matrix import Looked, Place
from tokendraw_testing.kit.report import looked_json
from tokendraw_testing.kit.trial import FIRST_LOOK_P, SECOND_LOOK_P

_NUMBER: Final = re.compile(r"(?<![A-Za-z])[-+]?\d[-+\d.e]*")


@dataclass(frozen=True, kw_only=True)
class FuzzFinding:
    """A random case with a violation."""

    operation: str
    number: int
    """Number of the case; with the run's seed it repeats the case."""
    detail: str
    """Needed against found, in words."""
    traceback: str = ""
    """Traceback of a call that raised: the sampler's frames, the innermost last; "" if none did."""
    times: int = 1
    """Number of cases that differ in numbers alone."""


@dataclass(frozen=True, kw_only=True)
class FuzzReport:
    """Random cases of a run, with the findings."""

    sampler: str
    device: str
    quick: bool
    seed: int
    cases: dict[str, int]
    """Number of cases by operation."""
    left_out: tuple[str, ...]
    """Offered operations without random cases in the kit."""
    checks: int
    """Number of statistical checks."""
    findings: tuple[FuzzFinding, ...]
    """The first of each sort, in the order of their numbers."""
    looked: Looked
    """Numbers of rows by call, dtype, width of the vocabulary and kind of row."""
    places: tuple[Place, ...]
    """Places that the advertised capabilities let cases look at."""
    jobs: int
    elapsed: float
    """Seconds from the start of the run to its end."""

    @property
    def false_alarm(self) -> float:
        """Return the highest probability that a correct sampler gives a finding in a run of so many checks."""
        return self.checks * FIRST_LOOK_P * SECOND_LOOK_P

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        facts = {**asdict(self), "passed": not self.findings, "false_alarm": self.false_alarm}
        del facts["places"]
        coverage = dict(self.looked)
        facts["looked"] = looked_json(self.looked)
        facts["missed"] = [place._asdict() for place in self.places if place not in coverage]
        return facts


def first_of_each_sort(findings: Iterable[FuzzFinding]) -> tuple[FuzzFinding, ...]:
    """Keep the first finding of each sort, by number; findings of a sort differ in numbers alone."""
    sorts: dict[tuple[str, str, str], FuzzFinding] = {}
    for finding in sorted(findings, key=lambda finding: (finding.number, finding.operation)):
        sort = finding.operation, _NUMBER.sub("#", finding.detail), finding.traceback
        first = sorts.setdefault(sort, replace(finding, times=0))
        sorts[sort] = replace(first, times=first.times + 1)
    return tuple(sorts.values())
