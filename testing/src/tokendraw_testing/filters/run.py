"""Checks a filter: a line for each property of the floor and of the rows drawn by a sampler."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from tokendraw import InvalidParameterError
from tokendraw.filters import InstalledFilter
from tokendraw.tools import all_of, one_of
from tokendraw_testing.filters import floor_lines, sampler_lines
from tokendraw_testing.filters.definitions import Definition
from tokendraw_testing.filters.subject import FilterSubject, make_subject
from tokendraw_testing.kit.attempt import attempt, fixed_randomness
from tokendraw_testing.kit.report import Line, Report, Status
from tokendraw_testing.kit.trial import FALSE_ALARM, Trial

_FORM: Final = "form of the floor"
_FLOOR_LINES: Final[dict[str, Callable[[FilterSubject, Trial], str]]] = {
    _FORM: floor_lines.form,
    "values": floor_lines.values,
    "no waiting": floor_lines.no_waiting,
    "rows apart": floor_lines.rows_apart,
    "floors in float64": floor_lines.floors_in_float64,
    "definition": floor_lines.definition,
    "reach": floor_lines.reach,
}
_SAMPLER_LINES: Final = {
    "kept sets": sampler_lines.kept_sets,
    "beside other filters": sampler_lines.beside_others,
    "off": sampler_lines.off,
    "special rows": sampler_lines.special,
    "seeded tokens": sampler_lines.seeded_tokens,
    "distribution": sampler_lines.distribution,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class FilterReport(Report):
    """The lines of a filter: a :class:`Report` whose ``sampler`` has the names of all samplers that drew.

    :ivar filter: The filter and where it comes from.
    :ivar samplers: Names of the samplers that drew.
    :ivar values: Values that rows asked for.
    """

    filter: InstalledFilter
    samplers: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def title(self) -> str:
        """Name the filter and the samplers."""
        return f"{self.filter.name} with {self.sampler}"


def check_filter(
    name: str,
    sampler: str | None = None,
    *,
    device: str | torch.device | None = None,
    quick: bool = False,
    seed: int = 0,
    values: Sequence[float] = (),
    definition: Definition | None = None,
    only: Iterable[str] = (),
    finished: Callable[[Line], None] = lambda line: None,
) -> FilterReport:
    """Check an installed filter from moments, as ``tokendraw check --filter`` does.

    :param name: of the filter.
    :param sampler: that draws with it; None: every installed one that computes the moments on the device.
    :param device: None: the accelerator if torch sees one, else the CPU.
    :param values: of the filter that rows ask for; (): those of a list of numbers that the filter takes.
    :param definition: marks the kept tokens [n] bool of y [n] float64, the finite logits of a row, for a value; None:
        known for tokendraw's own filters alone.
    :param only: names of lines; (): all.
    :param finished: called with each line when it is complete.
    :raises InvalidParameterError: the filter refuses a value, or there is no line of a name.
    :raises TokendrawError: no such filter can be used, or no sampler computes its moments on the device.
    """
    start = time.perf_counter()
    subject = make_subject(
        name, sampler=sampler, device=device, quick=quick, seed=seed, values=values, definition=definition
    )
    lines: list[Line] = []
    for line_name, (about, look) in _select(_lines_of(subject), only).items():
        lines.append(_line(subject, seed, line_name, about, look, lines))
        finished(lines[-1])
    return FilterReport(
        sampler=all_of(subject.samplers),
        device=str(subject.device),
        quick=quick,
        seed=seed,
        false_alarm=FALSE_ALARM,
        lines=tuple(lines),
        elapsed=time.perf_counter() - start,
        filter=subject.record,
        samplers=tuple(subject.samplers),
        values=subject.values,
    )


def line_names(samplers: Iterable[str] = ()) -> dict[str, str]:
    """Return the demand of each line by name, for some samplers."""
    of_floor = {name: _about(check) for name, check in _FLOOR_LINES.items()}
    return of_floor | {
        f"{name}, {sampler}": _about(check) for sampler in samplers for name, check in _SAMPLER_LINES.items()
    }


def _lines_of(subject: FilterSubject) -> dict[str, tuple[str, Callable[[Trial], str]]]:
    """Return demand and check of each line by name."""
    lines: dict[str, tuple[str, Callable[[Trial], str]]] = {
        name: (_about(check), partial(check, subject)) for name, check in _FLOOR_LINES.items()
    }
    return lines | {
        f"{name}, {sampler}": (_about(check), partial(check, subject, view))
        for sampler, view in subject.samplers.items()
        for name, check in _SAMPLER_LINES.items()
    }


def _select(lines: dict[str, Any], only: Iterable[str]) -> dict[str, Any]:
    """Pick lines by name; a name without its sampler picks those of all samplers."""
    names = list(only)
    for name in names:
        if not _matching(lines, name):
            raise InvalidParameterError(
                f"'only' needs the name of a line, found {name!r}. Name {one_of(map(repr, lines))}."
            )
    picked = {line for name in names for line in _matching(lines, name)}
    return {line: check for line, check in lines.items() if line in picked} if names else lines


def _matching(lines: Iterable[str], name: str) -> list[str]:
    return [line for line in lines if name in (line, line.partition(", ")[0])]


def _line(
    subject: FilterSubject,
    seed: int,
    name: str,
    about: str,
    look: Callable[[Trial], str],
    earlier: Sequence[Line],
) -> Line:
    """Check a line, unless an earlier line found a floor of another form."""
    start = time.perf_counter()
    trial = Trial(f"{subject.rule.name}/{name}", seed)
    if any(line.name == _FORM and line.status is Status.FAILED for line in earlier) and name != "values":
        detail = "needs a floor of the right form, found none"
        return Line(name=name, about=about, status=Status.NOT_RUN, detail=detail)
    with fixed_randomness(int(trial.generator("torch").integers(2**63)), subject.device):
        outcome = attempt(lambda: look(trial))
    status = Status.FAILED if outcome.failed else Status.NOT_RUN if outcome.not_run else Status.PASSED
    return Line(
        name=name,
        about=about,
        status=status,
        detail=outcome.detail,
        traceback=outcome.traceback,
        seconds=time.perf_counter() - start,
        **trial.figures,
    )


def _about(check: Callable[..., str]) -> str:
    return (inspect.getdoc(check) or check.__name__).splitlines()[0]
