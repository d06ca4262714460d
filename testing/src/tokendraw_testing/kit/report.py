"""Reports of the kit: a line for each property or for random cases, and the places where no row was looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import product
from typing import Any, Final, NamedTuple

_WIDTHS: Final = (1 << 10, 1 << 16, 1 << 17, None)
"""Widest vocabulary of each class; None: any."""


class Place(NamedTuple):
    """Rows of a sort, which a run looks at or misses."""

    call: str
    """Name of the operation, with its mode if there are modes."""
    dtype: str
    """Dtype of the logits, by its torch name."""
    up_to: int | None
    """Widest vocabulary of the class of widths; None: no limit."""

    def __str__(self) -> str:
        width = f"above {_WIDTHS[-2]:,}" if self.up_to is None else f"up to {self.up_to:,}"
        return f"{self.call} in {self.dtype} {width} ids"


def width_class(vocab_size: int) -> int | None:
    """Return the widest vocabulary in the class of a vocabulary size."""
    return next(width for width in _WIDTHS if width is None or vocab_size <= width)


def places(calls: Iterable[str], dtypes: Iterable[str], max_vocab_size: int | None) -> tuple[Place, ...]:
    """List the places within the limits of a provider."""
    last = _WIDTHS.index(None if max_vocab_size is None else width_class(max_vocab_size))
    return tuple(Place(*place) for place in product(calls, dtypes, _WIDTHS[: last + 1]))


class Status(StrEnum):
    """The outcome of a line."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"  # not advertised, and refused in words
    NOT_RUN = "not run"  # it needs a device that is not here, or nothing can test the claim
    EXPECTED = "expected to fail"  # it failed, and the plugin's description says so


@dataclass(frozen=True, kw_only=True)
class Line:
    """Result of one property, or of random cases.

    :ivar name: Name of the property; of random cases the operation, of a failed one with its number.
    :ivar status: Outcome: passed, failed, refused, not run or expected to fail.
    :ivar detail: Sizes that were looked at; for a failure, needed against found; for a refusal, the message of the
        refusal; for an expected failure, its reason in the plugin's description and what was found.
    :ivar about: States the demand in a sentence.
    :ivar checks: Number of statistical checks.
    :ivar draws: Number of tokens that went into the statistical checks.
    :ivar p_value: Smallest p-value of the checks.
    :ivar worst: Check with the smallest p-value.
    :ivar traceback: Traceback of a call that raised: the sampler's frames, the innermost last; "" if none did.
    :ivar seconds: Seconds that the property took.
    :ivar looked: Places where the line has looked at rows.
    :ivar again: Options of ``tokendraw check`` that repeat random cases; () for a property, which ``--only`` repeats.
    """

    name: str
    status: Status
    detail: str
    about: str = ""
    checks: int = 0
    draws: int = 0
    p_value: float | None = None
    worst: str = ""
    traceback: str = ""
    seconds: float = 0.0
    looked: frozenset[Place] = frozenset()
    again: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say needed against found and state the demand, as a failing test prints it."""
        about = f"\ndemanded: {self.about}" if self.about else ""
        raised = f"\nraised in:\n{self.traceback.rstrip()}" if self.traceback else ""
        return f"{self.name}: {self.detail}{about}{raised}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """The lines of a run, and the run's settings. ``assert report.passed, str(report)`` shows what failed.

    :ivar sampler: Name of the plugin that was checked.
    :ivar device: Device that the plugin drew on.
    :ivar quick: Whether the run was the quick one.
    :ivar seed: Seed of everything random in the run.
    :ivar false_alarm: Highest probability that a correct sampler fails such a run.
    :ivar lines: One line for each property, in the order of the run.
    :ivar places: Places that the advertised capabilities let lines look at.
    :ivar jobs: Number of processes that shared the lines.
    :ivar elapsed: Seconds from the start of the run to its end.
    """

    sampler: str
    device: str
    quick: bool
    seed: int
    false_alarm: float
    lines: tuple[Line, ...]
    places: tuple[Place, ...] = ()
    jobs: int = 1
    elapsed: float = 0.0

    def __str__(self) -> str:
        """Write the counts, then every failure in full."""
        effort = "quick" if self.quick else "full"
        first = f"{self.title} on {self.device}, {effort}, seed {self.seed}: {self.summary}"
        return "\n\n".join([first, *map(str, self.failed)])

    def __repr__(self) -> str:
        return f"<Report of {self.title!r} on {self.device}: {self.summary}>"

    @property
    def title(self) -> str:
        """Name the subject of the run."""
        return self.sampler

    @property
    def failed(self) -> tuple[Line, ...]:
        """Return the failed lines."""
        return self.ended(Status.FAILED)

    @property
    def passed(self) -> bool:
        """Whether no line failed."""
        return not self.failed

    @property
    def seconds(self) -> float:
        """Return the sum of the seconds of all lines."""
        return sum(line.seconds for line in self.lines)

    @property
    def checks(self) -> int:
        """Return the number of statistical checks."""
        return sum(line.checks for line in self.lines)

    @property
    def missed(self) -> tuple[Place, ...]:
        """Return the places without a checked row: what the run says nothing about."""
        looked = {place for line in self.lines for place in line.looked}
        return tuple(place for place in self.places if place not in looked)

    @property
    def summary(self) -> str:
        """Count the lines by outcome: ``40 passed, 0 failed, 4 refused (not advertised), 0 not run``."""
        not_run = dict.fromkeys(line.detail for line in self.ended(Status.NOT_RUN))
        notes = {Status.REFUSED: "not advertised", Status.NOT_RUN: "; ".join(not_run)}
        counts = {status: len(self.ended(status)) for status in Status}
        if not counts[Status.EXPECTED]:
            del counts[Status.EXPECTED]
        return ", ".join(
            f"{count} {status} ({notes[status]})" if count and status in notes else f"{count} {status}"
            for status, count in counts.items()
        )

    def ended(self, status: Status) -> tuple[Line, ...]:
        """Return the lines with an outcome."""
        return tuple(line for line in self.lines if line.status is status)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        facts = {**asdict(self), "passed": self.passed, "seconds": self.seconds}
        del facts["places"]
        for line in facts["lines"]:
            del line["looked"]
        return {**facts, "missed": [place._asdict() for place in self.missed]}
