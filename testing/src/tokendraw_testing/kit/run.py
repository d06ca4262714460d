"""Checks the properties of a subject, or random cases until the time is over, in one process or several.

A failure ends only its own line or case. The run's seed and a case's number repeat the case.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch

from tokendraw import InvalidParameterError
from tokendraw.plugin import one_thread
from tokendraw.tools import all_of, format_error
from tokendraw_testing.kit.property import Property, find, select_properties
from tokendraw_testing.kit.report import Line, Report, Status
from tokendraw_testing.kit.subject import Subject, require_refusal
from tokendraw_testing.kit.trial import FALSE_ALARM, FIRST_LOOK_P, SECOND_LOOK_P, NotRun, Trial, Violation
from tokendraw_testing.kit.workers import results

_KIT: Final = Path(__file__).parents[1]
_NUMBER: Final = re.compile(r"(?<![A-Za-z])[-+]?\d[-+\d.e]*")


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
    by_name = {prop.name: prop for prop in select_properties(only, operation) if applies(subject, prop)}
    jobs = min(jobs, len(by_name)) or 1
    longest_first = sorted(by_name, key=lambda name: not by_name[name].is_long)
    begin = (lambda name: starting(by_name[name])) if starting else None
    lines: dict[str, Line] = {}
    names = longest_first if jobs > 1 else by_name
    with contextlib.closing(results(subject, _check_named, names, jobs, begin)) as found:
        for name, line in found:
            is_dead = not line.name  # the process that checked it
            dead = replace(line, name=name, about=by_name[name].about)
            lines[name] = _as_expected(subject, dead) if is_dead else line
            if finished:
                finished(lines[name])
    operations = dict.fromkeys(prop.operation for prop in by_name.values())
    return make_report(subject, [lines[name] for name in by_name], operations, start=start, jobs=jobs)


def make_report(
    subject: Subject,
    lines: Iterable[Line],
    operations: Iterable[str] = (),
    *,
    start: float,
    jobs: int = 1,
    false_alarm: float = FALSE_ALARM,
) -> Report:
    """Make the report of a run that started at ``start``, with the places of some operations."""
    kits = {operation: find(operation) for operation in operations}
    return Report(
        sampler=subject.name,
        device=str(subject.device),
        quick=subject.effort.quick,
        seed=subject.seed,
        false_alarm=false_alarm,
        lines=tuple(lines),
        places=tuple(place for kit in kits.values() if kit for place in kit.view(subject).places()),
        jobs=jobs,
        elapsed=time.perf_counter() - start,
    )


def applies(subject: Subject, prop: Property) -> bool:
    """Whether a property makes a line for a subject: a check of a promise, or a refusal."""
    capabilities = subject.capabilities.get(prop.operation)
    if capabilities is None or find(prop.operation) is None:
        return False
    return prop.advertised is None or prop.advertised(capabilities) or prop.refusal is not None


def _check_named(subject: Subject, name: str) -> Line:
    (prop,) = select_properties(name)
    line = check(subject, prop)
    assert line is not None, "those without were left out"
    return line


def check(subject: Subject, prop: Property) -> Line | None:
    """Check one property; None if the property does not apply to the subject. Torch's random state is restored."""
    kit = find(prop.operation)
    if kit is None or not applies(subject, prop):
        return None
    trial, view, uses = Trial(prop.name, subject.seed), kit.view(subject), subject.uses
    refusal = prop.refusal if prop.advertised and not prop.advertised(view.capabilities) else None

    def look(trial: Trial) -> str:
        if refusal is not None:
            return require_refusal(view, refusal)
        if prop.needs_cuda and subject.device.type != "cuda":
            raise NotRun(f"needs a CUDA device, found {subject.device.type}")
        detail = prop.check(view, trial)
        if subject.uses == uses:
            raise NotRun(f"needs a call to look at, found none: {detail}")
        return detail

    line = attempt(look, prop.name, prop.about, trial, subject.device)
    if refusal is not None and line.status is Status.PASSED:
        line = replace(line, status=Status.REFUSED)
    return _as_expected(subject, replace(line, looked=frozenset(view.looked)))


def attempt(look: Callable[[Trial], str], name: str, about: str, trial: Trial, device: torch.device) -> Line:
    """Run a check, on one thread and from a random state of torch by the trial's seed, and make its line.

    Any exception is a failure, except an interrupt.
    """
    start = time.perf_counter()
    status, raised = Status.FAILED, ""
    devices = [device.index or 0] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), one_thread():
            torch.manual_seed(int(trial.generator("torch").integers(2**63)))
            status, detail = Status.PASSED, look(trial)
    except NotRun as reason:
        status, detail = Status.NOT_RUN, str(reason)
    except Violation as violation:
        status, detail, raised = Status.FAILED, str(violation), _frames(violation.__cause__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a sampler that calls sys.exit must not end the run
        status, detail, raised = Status.FAILED, f"a call raised {format_error(error)}", _frames(error)
    p_value, worst = trial.least or (None, "")
    return Line(
        name=name,
        about=about,
        status=status,
        detail=detail,
        checks=trial.checks,
        draws=trial.draws,
        p_value=p_value,
        worst=worst,
        traceback=raised,
        seconds=time.perf_counter() - start,
    )


def _frames(error: BaseException | None) -> str:
    """Format the frames below the kit's own, where the sampler raised; all of them if the kit itself did."""
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    kit = [i for i, frame in enumerate(frames) if _KIT in Path(frame.filename).parents]
    below = frames[kit[-1] + 1 :] if kit else frames
    return "".join(traceback.format_list(below or frames))


def _as_expected(subject: Subject, line: Line) -> Line:
    """Judge a line by the expected failures in the plugin's description: to pass is an error."""
    reason = subject.expected_failures.get(line.name)
    if reason is not None and line.status is Status.FAILED:
        return replace(line, status=Status.EXPECTED, detail=f"{reason}; found: {line.detail}")
    if reason is not None and line.status is Status.PASSED:
        needed = f"needs to fail, as PluginInfo.expected_failures says ({reason})"
        detail = f"{needed}, found it passed. Take it off that list"
        return replace(line, status=Status.FAILED, detail=detail)
    return line


class Case(NamedTuple):
    """A random case of a run."""

    operation: str
    number: int


def fuzz(
    subject: Subject,
    seconds: float,
    *,
    only: int | None = None,
    operation: str | None = None,
    jobs: int = 1,
    progress: Callable[[int, int, float], None] | None = None,
) -> Report:
    """Check random cases of each operation in turn, for so many seconds; a finding does not end the run.

    The seconds begin with the first case: the start of several processes does not count. The report has a line for
    the cases of each operation that went well, and one for the first finding of each sort.

    :param only: number of the only case to look at, however long it takes.
    :param operation: one of those that the subject offers; None: every one that the kit has random cases of.
    :param jobs: number of processes, as in :func:`run`.
    :param progress: called after each case with the numbers of cases and of findings so far, and their seconds.
    :raises InvalidParameterError: the kit has no random cases of it; or there are several ``jobs`` for a subject that
        is not installed.
    """
    start = first = time.perf_counter()
    offered = [name for name in subject.capabilities if operation in (None, name)]
    names = [name for name in offered if (kit := find(name)) and kit.fuzz]
    if not names:
        raise InvalidParameterError(
            f"'fuzz' needs an operation that the kit has random cases of, found {all_of(offered) or 'none'}. "
            "Check its properties instead."
        )

    def cases() -> Iterator[Case]:
        nonlocal first
        first = time.perf_counter()
        deadline = first + seconds
        for number in itertools.count() if only is None else (only,):
            for name in names:
                if only is None and time.perf_counter() >= deadline:
                    return
                yield Case(name, number)

    options = ("--fuzz", f"{seconds:g}") if only is None else ("--fuzz-case", f"{subject.seed}:{only}")
    none = Line(name="", status=Status.NOT_RUN, detail="needs random cases, found none")
    good = {name: replace(none, name=name, again=("--operation", name, *options)) for name in offered}
    counts, findings = Counter[str](), list[tuple[Case, Line]]()
    with contextlib.closing(results(subject, _check_case, cases(), jobs)) as found:
        for number, (case, line) in enumerate(found, 1):
            if line.status is Status.FAILED:
                findings.append((case, line))
            else:
                counts[case.operation] += 1
                good[case.operation] = _add(good[case.operation], line, counts[case.operation])
            if progress:
                progress(number, len(findings), time.perf_counter() - first)
    lines = [*good.values(), *_first_of_each_sort(subject, findings)]
    false_alarm = sum(line.checks for line in lines) * FIRST_LOOK_P * SECOND_LOOK_P
    return make_report(subject, lines, names, start=start, jobs=jobs, false_alarm=false_alarm)


def _add(total: Line, line: Line, count: int) -> Line:
    return replace(
        total,
        status=Status.PASSED,
        detail=f"{count:,} random case{'' if count == 1 else 's'}",
        checks=total.checks + line.checks,
        draws=total.draws + line.draws,
        seconds=total.seconds + line.seconds,
        looked=total.looked | line.looked,
    )


def _check_case(subject: Subject, case: Case) -> Line:
    kit = find(case.operation)
    assert kit is not None
    hook, view = kit.fuzz, kit.view(subject)
    assert hook is not None, "the operation has random cases"
    trial = Trial(f"fuzz {case.operation} {case.number}", subject.seed)
    rng = np.random.default_rng([subject.seed, case.number])
    line = attempt(lambda trial: hook(view, rng, trial), str(case), "", trial, subject.device)
    return replace(line, looked=frozenset(view.looked))


def _first_of_each_sort(subject: Subject, findings: Iterable[tuple[Case, Line]]) -> list[Line]:
    """Keep the first finding of each sort, by number; findings of a sort differ in numbers alone."""
    sorts: dict[tuple[str, str, str], list[tuple[Case, Line]]] = {}
    for case, line in sorted(findings, key=lambda finding: (finding[0].number, finding[0].operation)):
        sort = case.operation, _NUMBER.sub("#", line.detail), line.traceback
        sorts.setdefault(sort, []).append((case, line))
    return [
        replace(
            line,
            name=f"{case.operation}, case {case.number}",
            detail=f"{line.detail}; {len(others)} more differ in numbers alone" if others else line.detail,
            again=("--operation", case.operation, "--fuzz-case", f"{subject.seed}:{case.number}"),
        )
        for (case, line), *others in sorts.values()
    ]
