"""Looks at random cases until the time is over; each is repeated by the run's seed and its number alone."""

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
from tokendraw_testing.kit.attempt import attempt, repeatable
from tokendraw_testing.kit.fuzz_report import Finding, FuzzReport, distinct
from tokendraw_testing.kit.looked import Looked, Place, in_order
from tokendraw_testing.kit.operation import find
from tokendraw_testing.kit.run import every_place
from tokendraw_testing.kit.subject import Subject
from tokendraw_testing.kit.trial import Trial
from tokendraw_testing.kit.workers import Death, results


class Case(NamedTuple):
    """A random case of a run."""

    operation: str
    number: int


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The outcome of a case."""

    finding: Finding | None
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
    """Look at random cases of each operation in turn, for so many seconds; a finding does not end the run.

    The seconds begin with the first case: the start of several processes does not count.

    :param operation: one of those that the subject offers; None: every one that the kit has random cases of.
    :param jobs: number of processes, as in :func:`tokendraw_testing.run`.
    :param progress: called after each case with the numbers of cases and of findings so far.
    :raises InvalidParameterError: the kit has no random cases of it; or there are several ``jobs`` for a subject that
        is not installed.
    """

    def in_time(fuzzed: Iterable[str]) -> Iterator[Case]:
        deadline = time.perf_counter() + seconds
        for number in itertools.count():
            for name in fuzzed:
                if time.perf_counter() >= deadline:
                    return
                yield Case(name, number)

    return _report(subject, operation, in_time, jobs, progress)


def fuzz_case(subject: Subject, number: int, *, operation: str | None = None) -> FuzzReport:
    """Look at one random case again, that of the subject's seed and of this number, of each operation.

    :param operation: as in :func:`fuzz`.
    :raises InvalidParameterError: the kit has no random cases of it.
    """
    return _report(subject, operation, lambda fuzzed: (Case(name, number) for name in fuzzed))


def fuzzable(subject: Subject, operation: str | None = None) -> tuple[str, ...]:
    """List the operations that a subject offers and that the kit has random cases of.

    :param operation: consider this one alone.
    :raises InvalidParameterError: there is none.
    """
    offered = tuple(name for name in subject.capabilities if operation in (None, name))
    fuzzed = tuple(name for name in offered if (kit := find(name)) and kit.fuzz)
    if not fuzzed:
        raise InvalidParameterError(
            f"'fuzz' needs an operation that the kit has random cases of, found {all_of(offered) or 'none'}. "
            "Check its properties instead."
        )
    return fuzzed


def look(subject: Subject, case: Case) -> CaseResult:
    """Look at one case."""
    kit = find(case.operation)
    assert kit is not None
    assert kit.fuzz is not None, "the operation is one of fuzzable(...)"
    hook, viewed = kit.fuzz, kit.view(subject)
    trial = Trial(f"fuzz {case.operation} {case.number}", subject.seed)
    rng = np.random.default_rng([subject.seed, case.number])
    with repeatable(int(trial.generator("torch").integers(2**63)), subject.device):
        outcome = attempt(lambda: hook(viewed, rng, trial))
    finding = Finding(**case._asdict(), detail=outcome.detail, traceback=outcome.traceback)
    return CaseResult(
        finding=finding if outcome.failed else None, checks=trial.checks, looked=tuple(viewed.looked.items())
    )


def _report(
    subject: Subject,
    operation: str | None,
    cases: Callable[[Iterable[str]], Iterable[Case]],
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> FuzzReport:
    start, fuzzed = time.perf_counter(), fuzzable(subject, operation)
    counts, checks, looked, findings = Counter[str](), 0, Counter[Place](), list[Finding]()
    with contextlib.closing(_results(subject, cases(fuzzed), jobs)) as found:
        for case, result in found:
            counts[case.operation] += 1
            checks += result.checks
            looked.update(dict(result.looked))
            findings += [result.finding] if result.finding else []
            if progress:
                progress(counts.total(), len(findings))
    wanted = subject.capabilities if operation is None else fuzzed
    places = every_place(subject, fuzzed)
    return FuzzReport(
        sampler=subject.name,
        device=str(subject.device),
        quick=subject.effort.quick,
        seed=subject.seed,
        cases={name: counts[name] for name in fuzzed},
        left_out=tuple(name for name in wanted if name not in fuzzed),
        checks=checks,
        findings=distinct(findings),
        looked=in_order(looked, places),
        places=places,
        jobs=jobs,
        elapsed=time.perf_counter() - start,
    )


def _results(subject: Subject, cases: Iterable[Case], jobs: int) -> Generator[tuple[Case, CaseResult]]:
    if jobs == 1:
        for case in cases:
            yield case, look(subject, case)
        return
    with contextlib.closing(results(subject, look, cases, jobs)) as found:
        for case, result in found:
            yield case, _killed(case, result) if isinstance(result, Death) else result


def _killed(case: Case, death: Death) -> CaseResult:
    return CaseResult(finding=Finding(**case._asdict(), detail=f"a call {death.how}"))
