"""What a run of the kit found, one line a property."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a line ended."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"  # not advertised, and refused in words
    NOT_RUN = "not run"  # it needs a device that is not here


@dataclass(frozen=True, kw_only=True)
class Line:
    """One property."""

    name: str
    status: Status
    detail: str
    """What was looked at; of a failure, what was needed and found; of a refusal, its words."""
    about: str = ""
    """What is demanded, in a sentence."""
    checks: int = 0
    """Statistical checks."""
    draws: int = 0
    """Tokens that went into them."""
    p_value: float | None = None
    """The least of them."""
    worst: str = ""
    """Where it was the least."""
    traceback: str = ""
    """Where a call raised: the frames of the sampler, the innermost last; "" if none did."""
    seconds: float = 0.0

    def __str__(self) -> str:
        """What was found and what is demanded, as a failing test prints it."""
        text = f"{self.name}: {self.detail}\ndemanded: {self.about}"
        return f"{text}\nraised in:\n{self.traceback.rstrip()}" if self.traceback else text


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """All lines of a run, and what was run. ``assert report.passed, str(report)`` shows what failed."""

    sampler: str
    device: str
    quick: bool
    seed: int
    false_alarm: float
    """The most that a correct sampler fails such a run with."""
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        """The counts, then every failure in full."""
        effort = "quick" if self.quick else "full"
        first = f"{self.sampler} on {self.device}, {effort}, seed {self.seed}: {self.summary}"
        return "\n\n".join([first, *map(str, self.failed)])

    def __repr__(self) -> str:
        return f"<Report of {self.sampler!r} on {self.device}: {self.summary}>"

    @property
    def failed(self) -> tuple[Line, ...]:
        """The lines that are red."""
        return self.ended(Status.FAILED)

    @property
    def passed(self) -> bool:
        """Whether none is."""
        return not self.failed

    @property
    def seconds(self) -> float:
        """How long the properties took, all together."""
        return sum(line.seconds for line in self.lines)

    @property
    def summary(self) -> str:
        """How many lines ended in which way: ``40 passed, 0 failed, 4 refused (not advertised), 0 not run``."""
        not_run = dict.fromkeys(line.detail for line in self.ended(Status.NOT_RUN))
        notes = {Status.REFUSED: "not advertised", Status.NOT_RUN: "; ".join(not_run)}
        counts = {status: len(self.ended(status)) for status in Status}
        return ", ".join(
            f"{count} {status} ({notes[status]})" if count and status in notes else f"{count} {status}"
            for status, count in counts.items()
        )

    def ended(self, status: Status) -> tuple[Line, ...]:
        """The lines that ended in one way."""
        return tuple(line for line in self.lines if line.status is status)

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        facts = {**asdict(self), "passed": self.passed, "seconds": self.seconds}
        facts["lines"] = [{**asdict(line), "status": str(line.status)} for line in self.lines]
        return facts
