"""Compares calls with several threads with calls on one thread; all other lines of the kit compute on one thread.

A race shows now and then, so each call is repeated. A correct provider fails no repetition: what is compared are
results that no noise and no rounding decides.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tokendraw.plugin import Call, one_thread
from tokendraw.tools import all_of, num_threads
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.kit.trial import Trial, Violation, violations_named
from tokendraw_testing.kit.workers import usable_cores

_FIRST_REPEATS: Final = 10
"""Repetitions of a line's first call: a race that shows in three calls of five escapes them once in 9,500."""
_OTHER_REPEATS: Final = 3
"""Repetitions of a line's later calls."""
_TIMEOUT_SECONDS: Final = 300.0
"""Seconds that the calls of the threads may take together."""
_SWITCH_SECONDS: Final = 1e-5
"""Seconds after which Python's threads take turns, in place of 0.005: as often as many threads of an engine would."""


@dataclass(frozen=True)
class RepeatedCall:
    """A call, remade for each repetition, and the comparison of its outputs."""

    make: Callable[[], Call]
    differs: Callable[[Any, Any], str | None]
    """Describes the difference of an output from the output of one thread; None if there is none."""


def thread_counts() -> tuple[int, ...]:
    """List the numbers of threads of a line: two, and the number of cores."""
    return tuple(dict.fromkeys((2, max(2, usable_cores()))))


def require_cpu_threads(subject: OperationSubject, trial: Trial) -> None:
    """End the line as not run unless threads of the CPU compute.

    :raises NotRun: the device is no CPU, or kernels are interpreted.
    """
    if subject.device.type != "cpu":
        trial.skip(f"needs a CPU, found {subject.device.type}")
    if subject.effort.interpreted:
        trial.skip("needs compiled kernels, found an effort for interpreted ones")


def require_thread_free(
    subject: OperationSubject,
    trial: Trial,
    what: str,
    calls_by_thread: Sequence[RepeatedCall],
    turn: int = 0,
) -> None:
    """Require the output of one thread from calls with several threads, and of calls of one object at once.

    :param what: name of the calls in messages.
    :param calls_by_thread: the call of each Python thread. The rows of no two are equal: scratch that calls share holds
        one thread's rows while another thread reads.
    :param turn: number of the calls in their line.
    :raises Violation: an output differs, or a call raised in a thread.
    """
    references = [subject.make(call.make()) for call in calls_by_thread]
    calls = _OTHER_REPEATS if turn else _FIRST_REPEATS

    def require_alike(rank: int, output: Any) -> None:
        reason = calls_by_thread[rank].differs(references[rank], output)
        trial.require(reason is None, str(reason))

    for count in thread_counts():
        with num_threads(count), violations_named(f"{what}, {count} threads of torch"):
            for _ in range(calls):
                require_alike(0, subject.make(calls_by_thread[0].make()))
    with violations_named(f"{what}, one object in {len(calls_by_thread)} Python threads at once"):
        for rank, output in _at_once(subject, calls_by_thread, calls):
            require_alike(rank, output)


def thread_words() -> str:
    return f"with {all_of(thread_counts())} threads, and of one object in 2 threads at once"


def _at_once(
    subject: OperationSubject, calls_by_thread: Sequence[RepeatedCall], calls: int
) -> list[tuple[int, Any]]:
    """Make the calls of one object at once, each in a Python thread, and list (rank, output).

    Each repetition begins in all threads at the same time.
    """
    need, barrier = subject.usual_need, threading.Barrier(len(calls_by_thread))
    subject.built(need)  # by one thread
    outputs: list[tuple[int, Any]] = []
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            with one_thread():
                for _ in range(calls):
                    call = calls_by_thread[rank].make()
                    barrier.wait(_TIMEOUT_SECONDS)
                    outputs.append((rank, subject.make(call, need)))
        except threading.BrokenBarrierError:  # another thread's call raised, or has not returned
            return
        except BaseException as error:  # a provider that calls sys.exit must not end a thread in silence
            errors.append(error)
            barrier.abort()

    ranks = range(len(calls_by_thread))
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in ranks]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_TIMEOUT_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    if len(outputs) < len(threads) * calls:
        raise Violation(
            f"calls of one object in {len(threads)} threads need to return, found them at work after "
            f"{_TIMEOUT_SECONDS:g} s"
        )
    return outputs
