"""Times calls in turns, so that a busy moment affects all of them, with medians and quartiles."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tokendraw.tools import format_error
from tokendraw_bench.timing.together import Alone, Together

Draw: TypeAlias = Callable[[Any], object]
"""Takes one set of inputs: whatever the operation makes of them, such as a buffer of logits [B, V]."""
Clock: TypeAlias = Callable[[], float]

_WORKING_SET = 128 << 20  # bytes; beyond the last cache of most machines
_MOST_BUFFERS = 1024
_WARM_UP = 2
_LEAST_SAMPLE = 1e-3  # seconds that one sample should take, so that the clock's own time does not show


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that is timed: one step on one set of inputs.

    :ivar draw: Function that is timed; takes one set of inputs.
    :ivar graph_safe: Whether a CUDA graph can capture the call.
    :ivar way: Distinguishes the call from other calls of the same contender; "" for a single call.
    """

    draw: Draw
    graph_safe: bool = True
    way: str = ""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of one call in microseconds.

    :ivar us: Median time.
    :ivar q1_us: First quartile of the time.
    :ivar q3_us: Third quartile of the time.
    :ivar host_us: Time until a call returns on an idle device; None where the host itself computes.
    :ivar how: ``wall clock``; on CUDA ``graph``, or ``eager`` for what a graph cannot capture.
    """

    us: float
    q1_us: float
    q3_us: float
    host_us: float | None
    how: str

    @property
    def spread(self) -> float:
        """Return half the distance of the quartiles, as a share of the median."""
        return (self.q3_us - self.q1_us) / 2 / self.us if self.us else 0.0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A call that raised.

    :ivar reason: Exception in one line.
    """

    reason: str


class Timer(Protocol):
    """Times calls on one device.

    :ivar repeats: Number of samples of a median.
    :ivar method: Describes the method in words, for the head of a table.
    """

    repeats: int
    method: str

    def buffers(self, nbytes: int) -> int:
        """Return the number of sets of inputs of this size that no cache holds together."""

    def time(self, calls: Mapping[str, Call], buffers: Sequence[Any]) -> dict[str, Timing | Failure]:
        """Time every call on all buffers in rotation. A call that raises is a ``Failure`` and disturbs no other."""


class WallTimer:
    """Times calls by the wall clock, where the host computes or waits for the device.

    :param synchronize: waits for the device; None for the CPU.
    :param together: the ranks that make each call with this one.
    """

    def __init__(
        self,
        repeats: int,
        *,
        clock: Clock = time.perf_counter,
        synchronize: Callable[[], object] | None = None,
        together: Together | None = None,
    ) -> None:
        self.repeats = repeats
        self.method = f"wall clock over buffers of {_WORKING_SET >> 20} MiB in rotation"
        self._clock = clock
        self._synchronize = synchronize or (lambda: None)
        self._together = together or Alone()

    def buffers(self, nbytes: int) -> int:
        """Return at least two, so that no call finds its own inputs in a nearby cache."""
        return min(max(2, math.ceil(_WORKING_SET / nbytes)), _MOST_BUFFERS)

    def time(self, calls: Mapping[str, Call], buffers: Sequence[Any]) -> dict[str, Timing | Failure]:
        """Warm up, then take one sample of every call in turn, over and over."""
        failed: dict[str, Failure] = {}
        samples: dict[str, list[float]] = {name: [] for name in calls}
        rotation = {name: itertools.cycle(buffers) for name in calls}
        inner = dict.fromkeys(calls, 1)
        for turn in range(-_WARM_UP, self.repeats):
            for name in [name for name in calls if name not in failed]:
                self._together.meet()
                try:
                    seconds = self._sample(calls[name].draw, rotation[name], inner[name])
                except Exception as error:  # of a plugin, which may raise what it likes
                    failed[name] = Failure(reason=format_error(error))
                    continue
                seconds = self._together.most(seconds)
                if turn >= 0:
                    samples[name].append(1e6 * seconds)
                elif seconds > 0:
                    inner[name] = max(1, math.ceil(_LEAST_SAMPLE / seconds))
        return {
            name: failed[name] if name in failed else summary(samples[name], how="wall clock")
            for name in calls
        }

    def _sample(self, draw: Draw, rotation: Iterator[Any], count: int) -> float:
        """Measure the seconds of one call, averaged over ``count``."""
        inputs = list(itertools.islice(rotation, count))
        self._synchronize()
        start = self._clock()
        for buffer in inputs:
            draw(buffer)
        self._synchronize()
        return (self._clock() - start) / count


def summary(samples: Sequence[float], *, how: str, host_us: float | None = None) -> Timing:
    """Return median and quartiles of samples in microseconds."""
    if len(samples) == 1:
        samples = [*samples, *samples]
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(us=median, q1_us=q1, q3_us=q3, host_us=host_us, how=how)
