"""Checks random cases until the time is over; the run's seed and a case's number repeat the case."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokendraw import InvalidParameterError
from tokendraw.tools import all_of
from tokendraw_testing.kit.attempt import attempt, fixed_randomness
from tokendraw_testing.kit.fuzz_report import FuzzFinding, FuzzReport, first_of_each_sort
from tokendraw_testing.kit.matrix import Looked, Place, order_places
from tokendraw_testing.kit.operation import find
from tokendraw_testing.kit.run import places_of
from tokendraw_testing.kit.subject import Subject
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.kit.workers import Death, results


class FuzzCase(NamedTuple):
    """A random case of a run."""

    operation: str
    number: int


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The outcome of a case."""

    finding: FuzzFinding | None
    checks: int = 0
    """Number of statistical checks."""
    looked: Looked = ()


def fuzz(
    subject: Subject,
    seconds: float,
    *,
    operation: str | None = None,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> FuzzReport:
    """Check random cases of each operation in turn, for so many seconds; a finding does not end the run.

    The seconds begin with the first case: the start of several processes does not count.

    :param operation: one of those that the subject offers; None: every one that the kit has random cases of.
    :param jobs: number of processes, as in :func:`tokendraw_testing.run`.
    :param progress: called after each case with the numbers of cases and of findings so far.
    :raises InvalidParameterError: the kit has no random cases of it; or there are several ``jobs`` for a subject that
        is not installed.
    """

    def in_time(names: Iterable[str]) -> Iterator[FuzzCase]:
        deadline = time.perf_counter() + seconds
        for number in itertools.count():
            for name in names:
                if time.perf_counter() >= deadline:
                    return
                yield FuzzCase(name, number)

    return _report(subject, operation, in_time, jobs, progress)


def fuzz_case(subject: Subject, number: int, *, operation: str | None = None) -> FuzzReport:
    """Repeat the random case of the subject's seed and this number, for each operation.

    :param operation: as in :func:`fuzz`.
    :raises InvalidParameterError: the kit has no random cases of it.
    """
    return _report(subject, operation, lambda names: (FuzzCase(name, number) for name in names))


def fuzzed_operations(subject: Subject, operation: str | None = None) -> tuple[str, ...]:
    """List the operations offered by a subject for which the kit has random cases.

    :param operation: consider this one alone.
    :raises InvalidParameterError: there is none.
    """
    candidates = tuple(name for name in subject.capabilities if operation in (None, name))
    names = tuple(name for name in candidates if (kit := find(name)) and kit.fuzz)
    if not names:
        raise InvalidParameterError(
            f"'fuzz' needs an operation that the kit has random cases of, found {all_of(candidates) or 'none'}. "
            "Check its properties instead."
        )
    return names


def check_case(subject: Subject, case: FuzzCase) -> CaseResult:
    """Run one random case and judge the calls."""
    kit = find(case.operation)
    assert kit is not None
    assert kit.fuzz is not None, "the operation is one of fuzzable(...)"
    hook, view = kit.fuzz, kit.view(subject)
    trial = Trial(f"fuzz {case.operation} {case.number}", subject.seed)
    rng = np.random.default_rng([subject.seed, case.number])
    with fixed_randomness(int(trial.generator("torch").integers(2**63)), subject.device):
        outcome = attempt(lambda: hook(view, rng, trial))
    finding = FuzzFinding(**case._asdict(), detail=outcome.detail, traceback=outcome.traceback)
    return CaseResult(
        finding=finding if outcome.failed else None, checks=trial.checks, looked=tuple(view.looked.items())
    )


def _report(
    subject: Subject,
    operation: str | None,
    cases: Callable[[Iterable[str]], Iterable[FuzzCase]],
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> FuzzReport:
    start, names = time.perf_counter(), fuzzed_operations(subject, operation)
    counts, checks, coverage, findings = Counter[str](), 0, Counter[Place](), list[FuzzFinding]()
    with contextlib.closing(_results(subject, cases(names), jobs)) as outcomes:
        for case, result in outcomes:
            counts[case.operation] += 1
            checks += result.checks
            coverage.update(dict(result.looked))
            findings += [result.finding] if result.finding else []
            if progress:
                progress(counts.total(), len(findings))
    candidates = subject.capabilities if operation is None else names
    places = places_of(subject, names)
    return FuzzReport(
        sampler=subject.name,
        device=str(subject.device),
        quick=subject.effort.quick,
        seed=subject.seed,
        cases={name: counts[name] for name in names},
        left_out=tuple(name for name in candidates if name not in names),
        checks=checks,
        findings=first_of_each_sort(findings),
        looked=order_places(coverage, places),
        places=places,
        jobs=jobs,
        elapsed=time.perf_counter() - start,
    )


def _results(
    subject: Subject, cases: Iterable[FuzzCase], jobs: int
) -> Generator[tuple[FuzzCase, CaseResult]]:
    if jobs == 1:
        for case in cases:
            yield case, check_case(subject, case)
        return
    with contextlib.closing(results(subject, check_case, cases, jobs)) as outcomes:
        for case, result in outcomes:
            yield case, _result_of_death(case, result) if isinstance(result, Death) else result


def _result_of_death(case: FuzzCase, death: Death) -> CaseResult:
    return CaseResult(finding=FuzzFinding(**case._asdict(), detail=f"a call {death.how}"))
