"""Compares calls of several threads with calls of one thread; all other lines of the kit compute with one thread.

A race shows now and then, so each call is repeated. A correct provider fails no repetition: what is compared are
results that no noise and no rounding decides.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from tokendraw.plugin import Call, one_thread
from tokendraw.tools import all_of, num_threads
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.kit.trial import Trial, Violation
from tokendraw_testing.kit.workers import usable_cores

MANY_CALLS: Final = 10
"""Repetitions of a line's first call: a race that shows in three calls of five escapes them once in 9,500."""
FEW_CALLS: Final = 3
"""Repetitions of its other calls."""
LEAST_ROWS: Final = 256
"""Rows of a large batch: a backend that shares out rows shares out these."""
_PATIENCE: Final = 300.0
"""Seconds that the calls of two objects may take together."""
_SWITCH: Final = 1e-5
"""Seconds after which Python's threads take turns, in place of 0.005: as often as many threads of an engine would."""

Differ = Callable[[Any, Any], str | None]
"""Says how an output differs from that of one thread, in words; None if it does not."""


@dataclass(frozen=True)
class RepeatedCall:
    """A call of one object, made anew for each repetition, and the comparison of outputs."""

    make: Callable[[], Call]
    differs: Differ


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
    repeated: Sequence[RepeatedCall],
    calls: int = MANY_CALLS,
) -> None:
    """Require the output of one thread from calls with several threads, and from objects called at once.

    :param what: name of the calls in messages.
    :param repeated: the call of each object. The rows of no two are equal: memory that objects share holds one object's
        rows while another object reads.
    :param calls: number of repetitions with each number of threads, and by each object.
    :raises Violation: an output differs, or a call raised in a thread.
    """
    alone = [subject.make(call.make()) for call in repeated]
    for count in thread_counts():
        with num_threads(count), _named(f"{what}, {count} threads of torch"):
            for _ in range(calls):
                reason = repeated[0].differs(alone[0], subject.make(repeated[0].make()))
                trial.require(reason is None, str(reason))
    with _named(f"{what}, {len(repeated)} objects in {len(repeated)} Python threads at once"):
        for rank, output in _at_once(subject, repeated, calls):
            reason = repeated[rank].differs(alone[rank], output)
            trial.require(reason is None, str(reason))


def thread_words() -> str:
    """Say with how many threads calls were made."""
    return f"with {all_of(thread_counts())} threads, and 2 objects at once"


def _at_once(
    subject: OperationSubject, repeated: Sequence[RepeatedCall], calls: int
) -> list[tuple[int, Any]]:
    """Call an object for each of these calls, in a separate Python thread, and list (rank, output).

    Each repetition begins in all threads at the same time.
    """
    need = subject.usual_need
    providers = [subject.subject.built(subject.operation, need, rank) for rank in range(len(repeated))]
    outputs: list[tuple[int, Any]] = []
    raised: list[BaseException] = []
    together = threading.Barrier(len(repeated))

    def work(rank: int) -> None:
        try:
            with torch.no_grad(), one_thread():
                for _ in range(calls):
                    call = repeated[rank].make()
                    together.wait(_PATIENCE)
                    output = call.run(providers[rank])
                    reason = call.output_check(need)(output) or call.wrong_values(output, need)
                    if reason is not None:
                        raise Violation(f"a call needs to return {reason}")
                    outputs.append((rank, output))
        except threading.BrokenBarrierError:  # another object's call raised, or has not returned
            return
        except BaseException as error:  # a provider that calls sys.exit must not end a thread in silence
            raised.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(repeated))]
    with _switching():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_PATIENCE)
    for error in raised:
        raise error
    if len(outputs) < len(repeated) * calls:
        raise Violation(
            f"calls of {len(repeated)} objects at once need to return, found them at work after {_PATIENCE:g} s"
        )
    return outputs


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Put the name of the call and the number of threads in front of a violation's message."""
    try:
        yield
    except Violation as violation:
        raise Violation(f"{what}: {violation}") from violation.__cause__


@contextmanager
def _switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
