"""Checks all properties of a subject, in one process or several; a failure ends only its own line."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Callable, Generator, Iterable, Sequence

from tokendraw import InvalidParameterError
from tokendraw.tools import one_of
from tokendraw_testing.kit.attempt import Attempt, attempt, fixed_randomness
from tokendraw_testing.kit.matrix import Place, order_places
from tokendraw_testing.kit.operation import find, properties
from tokendraw_testing.kit.property import Property
from tokendraw_testing.kit.refusals import require_refusal
from tokendraw_testing.kit.report import Line, Report, Status
from tokendraw_testing.kit.subject import OperationSubject, Subject
from tokendraw_testing.kit.trial import FALSE_ALARM, Trial
from tokendraw_testing.kit.workers import Death, results


def run(
    subject: Subject,
    *,
    only: Iterable[str] | None = None,
    operation: str | None = None,
    jobs: int = 1,
    starting: Callable[[Property], None] | None = None,
    finished: Callable[[Line], None] | None = None,
) -> Report:
    """Check every property.

    :param only: names of the properties to check, or one name; None: all.
    :param operation: check those of this operation alone; None: of every operation that the subject offers.
    :param jobs: number of processes, for a subject that is installed; the results are the same. They import the
        main module, so a script that asks for several has to begin under ``if __name__ == "__main__":``.
    :param starting: called before each one that makes a line.
    :param finished: called with each line when it is complete.
    :raises InvalidParameterError: there is no such operation, or it has no property of a name in ``only``; or there
        are several ``jobs`` for a subject that is not installed.
    """
    start = time.perf_counter()
    properties_to_run = [prop for prop in select_properties(only, operation) if applies(subject, prop)]
    jobs = min(jobs, len(properties_to_run)) or 1
    results_iterator = (
        _check_in_turn(subject, properties_to_run, starting)
        if jobs == 1
        else _check_in_processes(subject, properties_to_run, jobs, starting)
    )
    lines = {}
    with contextlib.closing(results_iterator):
        for line in results_iterator:
            lines[line.name] = line
            if finished:
                finished(line)
    return Report(
        sampler=subject.name,
        device=str(subject.device),
        quick=subject.effort.quick,
        seed=subject.seed,
        false_alarm=FALSE_ALARM,
        lines=tuple(lines[prop.name] for prop in properties_to_run),
        places=places_of(subject, dict.fromkeys(prop.operation for prop in properties_to_run)),
        jobs=jobs,
        elapsed=time.perf_counter() - start,
    )


def select_properties(
    only: Iterable[str] | None = None, operation: str | None = None
) -> tuple[Property, ...]:
    """Select properties by name, in the order of a report.

    :param only: names, or one name; None: all.
    :param operation: take those of this operation alone; None: of every one.
    :raises InvalidParameterError: there is no such operation, or no property of one of the names; the message has the
        nearest.
    """
    all_properties = properties(operation)
    if only is None:
        return all_properties
    wanted_names = [only] if isinstance(only, str) else list(only)
    names = [prop.name for prop in all_properties]
    for name in wanted_names:
        if name not in names:
            suggestions = difflib.get_close_matches(name, names, n=3)
            near = f"Nearest: {one_of(map(repr, suggestions))}."
            advice = near if suggestions else "See `tokendraw check --list`."
            raise InvalidParameterError(f"'only' needs the name of a property, found {name!r}. {advice}")
    return tuple(prop for prop in all_properties if prop.name in wanted_names)


def applies(subject: Subject, prop: Property) -> bool:
    """Whether a property makes a line for a subject: a check of a promise, or a refusal."""
    capabilities = subject.capabilities.get(prop.operation)
    if capabilities is None or find(prop.operation) is None:
        return False
    return prop.advertised is None or prop.advertised(capabilities) or prop.refusal is not None


def places_of(subject: Subject, operations: Iterable[str]) -> tuple[Place, ...]:
    """List the places of some operations of a subject, in the order of a matrix."""
    kits = {operation: find(operation) for operation in operations}
    return tuple(place for kit in kits.values() if kit for place in kit.view(subject).places())


def check(subject: Subject, prop: Property) -> Line | None:
    """Check one property; None if the property does not apply to the subject. Torch's random state is restored."""
    kit = find(prop.operation)
    if kit is None or not applies(subject, prop):
        return None
    start = time.perf_counter()
    trial, view, uses = Trial(prop.name, subject.seed), kit.view(subject), subject.uses
    status, detail, traceback = Status.NOT_RUN, f"needs a CUDA device, found {subject.device.type}", ""
    is_refusal = prop.advertised is not None and not prop.advertised(view.capabilities)
    if is_refusal or not prop.needs_cuda or subject.device.type == "cuda":
        with fixed_randomness(int(trial.generator("torch").integers(2**63)), subject.device):
            outcome = attempt(lambda: _look(view, prop, trial, is_refusal=is_refusal))
        detail, traceback = outcome.detail, outcome.traceback
        status = _status(outcome, is_refusal=is_refusal)
        if status is Status.PASSED and subject.uses == uses:
            status, detail = Status.NOT_RUN, f"needs a call to look at, found none: {detail}"
    status, detail = _as_expected(subject.expected_failures.get(prop.name), status, detail)
    return Line(
        name=prop.name,
        about=prop.about,
        status=status,
        detail=detail,
        traceback=traceback,
        seconds=time.perf_counter() - start,
        looked=order_places(view.looked, view.places()),
        **trial.figures,
    )


def _status(outcome: Attempt, *, is_refusal: bool) -> Status:
    if outcome.failed:
        return Status.FAILED
    if outcome.not_run:
        return Status.NOT_RUN
    return Status.REFUSED if is_refusal else Status.PASSED


def _as_expected(reason: str | None, status: Status, detail: str) -> tuple[Status, str]:
    """Judge a line that the plugin's description expects to fail for a reason: an error is that it passed."""
    if reason is not None and status is Status.FAILED:
        return Status.EXPECTED, f"{reason}; found: {detail}"
    if reason is not None and status is Status.PASSED:
        needed = f"needs to fail, as PluginInfo.expected_failures says ({reason})"
        return Status.FAILED, f"{needed}, found it passed. Take it off that list"
    return status, detail


def _look(view: OperationSubject, prop: Property, trial: Trial, *, is_refusal: bool) -> str:
    if is_refusal:
        assert prop.refusal is not None, "without one the property does not apply"
        return require_refusal(view, prop.refusal)
    return prop.check(view, trial)


def _check_in_turn(
    subject: Subject, properties_to_run: Sequence[Property], starting: Callable[[Property], None] | None
) -> Generator[Line]:
    for prop in properties_to_run:
        if starting:
            starting(prop)
        line = check(subject, prop)
        assert line is not None, "those without were left out"
        yield line


def _check_in_processes(
    subject: Subject,
    properties_to_run: Sequence[Property],
    jobs: int,
    starting: Callable[[Property], None] | None,
) -> Generator[Line]:
    by_name = {prop.name: prop for prop in properties_to_run}
    begin = (lambda name: starting(by_name[name])) if starting else None
    longest_first = sorted(by_name, key=lambda name: not by_name[name].is_long)
    results_iterator = results(subject, check_named, longest_first, jobs, begin)
    with contextlib.closing(results_iterator):
        for name, line in results_iterator:
            yield _line_of_death(subject, by_name[name], line) if isinstance(line, Death) else line


def check_named(subject: Subject, name: str) -> Line:
    """Check the property with a name; the property has to apply to the subject."""
    (prop,) = select_properties(name)
    line = check(subject, prop)
    assert line is not None, "those without were left out"
    return line


def _line_of_death(subject: Subject, prop: Property, death: Death) -> Line:
    reason = subject.expected_failures.get(prop.name)
    status, detail = _as_expected(reason, Status.FAILED, f"a call {death.how}")
    return Line(name=prop.name, about=prop.about, status=status, detail=detail)
