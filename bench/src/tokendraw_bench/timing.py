"""Times calls in turns, so that a busy moment affects every call; detects times that other work disturbed.

Imports no torch.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tokendraw.tools import format_error

Draw: TypeAlias = Callable[[Any], object]
"""Function of a set of inputs, such as a buffer of logits [B, V]."""
Clock: TypeAlias = Callable[[], float]

_WORKING_SET_BYTES = 128 << 20  # bytes; beyond the last cache of most machines
_MAX_BUFFERS = 1024
_WARM_UP_CALLS = 2
_MIN_SAMPLE_SECONDS = 1e-3  # seconds that one sample should take, so that the clock's own time does not show


@dataclass(frozen=True, kw_only=True)
class TimedCall:
    """A timed call: a step on a set of inputs.

    :ivar draw: Timed function; takes a set of inputs.
    :ivar graph_safe: Whether a CUDA graph can capture the call.
    :ivar way: Distinguishes the call from other calls of the same contender; "" for a single call.
    :ivar renew: Changes the arguments of the call in place, so that the next call draws something else.
    """

    draw: Draw
    graph_safe: bool = True
    way: str = ""
    renew: Callable[[], object] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The time of a call in microseconds.

    :ivar us: Median time.
    :ivar q1_us: First quartile of the time.
    :ivar q3_us: Third quartile of the time.
    :ivar host_us: Time until a call returns on an idle device; None where the host itself computes.
    :ivar how: ``wall clock``; on CUDA ``graph``, or ``eager`` for what a graph cannot capture.
    :ivar largest_us: Largest time of a single call; None where samples are averages of several calls.
    :ivar least_host_us: Least time until a single call returns on an idle device; None likewise.
    """

    us: float
    q1_us: float
    q3_us: float
    host_us: float | None
    how: str
    largest_us: float | None = None
    least_host_us: float | None = None

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


@dataclass(frozen=True, kw_only=True)
class SamplePlan:
    """How samples are taken.

    :ivar single: Whether a sample is a single call, each with renewed arguments; else the average of several calls.
    :ivar warm: Whether the inputs of a call are in the cache.
    :ivar graphs: Whether CUDA graphs capture the calls.
    :ivar input_sets: Number of sets of inputs that calls take in turn; None: as many as exceed the caches.
    """

    single: bool = False
    warm: bool = False
    graphs: bool = True
    input_sets: int | None = None

    def buffers(self, nbytes: int, *, working_set: int, most: int) -> int:
        """Return the number of the plan, or of sets that exceed a working set, 2 to ``most``; 1 for a warm cache."""
        if self.input_sets is not None:
            return self.input_sets
        return 1 if self.warm else min(max(2, math.ceil(working_set / nbytes)), most)


class Timer(Protocol):
    """Times calls on one device.

    :ivar repeats: Number of samples of a median.
    :ivar method: Describes the method in words, for the head of a table.
    """

    repeats: int
    method: str

    def buffers(self, nbytes: int) -> int:
        """Return the number of sets of inputs that exceeds the caches together."""

    def time(self, calls: Mapping[str, TimedCall], buffers: Sequence[Any]) -> dict[str, Timing | Failure]:
        """Time every call on all buffers in rotation. A call that raises is a ``Failure`` and disturbs no other."""


class WallTimer:
    """Times calls by the wall clock, where the host computes or waits for the device.

    :param synchronize: waits for the device; None for the CPU.
    """

    def __init__(
        self,
        repeats: int,
        *,
        clock: Clock = time.perf_counter,
        synchronize: Callable[[], object] | None = None,
        plan: SamplePlan | None = None,
    ) -> None:
        self.repeats = repeats
        self._plan = plan or SamplePlan()
        sets = self._plan.input_sets
        rotation = f"over {sets} buffers" if sets else f"over buffers of {_WORKING_SET_BYTES >> 20} MiB"
        rotation += " in rotation"
        self.method = f"wall clock {'over one buffer' if self._plan.warm else rotation}"
        self.method += ", single calls" * self._plan.single
        self._clock = clock
        self._synchronize = synchronize or (lambda: None)

    def buffers(self, nbytes: int) -> int:
        """Return the number of sets of inputs that calls take in turn."""
        return self._plan.buffers(nbytes, working_set=_WORKING_SET_BYTES, most=_MAX_BUFFERS)

    def time(self, calls: Mapping[str, TimedCall], buffers: Sequence[Any]) -> dict[str, Timing | Failure]:
        """Warm up, then take samples of all calls in turn."""
        failed: dict[str, Failure] = {}
        samples: dict[str, list[float]] = {name: [] for name in calls}
        rotation = {name: itertools.cycle(buffers) for name in calls}
        inner = dict.fromkeys(calls, 1)
        for turn in range(-_WARM_UP_CALLS, self.repeats):
            for name in [name for name in calls if name not in failed]:
                try:
                    if self._plan.single:
                        calls[name].renew()
                    seconds = self._sample(calls[name].draw, rotation[name], inner[name])
                except Exception as error:  # of a plugin, which may raise what it likes
                    failed[name] = Failure(reason=format_error(error))
                    continue
                if turn >= 0:
                    samples[name].append(1e6 * seconds)
                elif seconds > 0 and not self._plan.single:
                    inner[name] = max(1, math.ceil(_MIN_SAMPLE_SECONDS / seconds))
        return {
            name: failed[name]
            if name in failed
            else summary(samples[name], how="wall clock", is_single=self._plan.single)
            for name in calls
        }

    def _sample(self, draw: Draw, rotation: Iterator[Any], count: int) -> float:
        """Measure the seconds of a call, averaged over ``count`` calls."""
        inputs = list(itertools.islice(rotation, count))
        self._synchronize()
        start = self._clock()
        for buffer in inputs:
            draw(buffer)
        self._synchronize()
        return (self._clock() - start) / count


def summary(
    samples: Sequence[float], *, how: str, host: Sequence[float] | None = None, is_single: bool = False
) -> Timing:
    """Return median and quartiles of samples in microseconds.

    :param host: samples of the time until a call returns; None where the host itself computes.
    :param is_single: whether each sample is of a single call.
    """
    if len(samples) == 1:
        samples = [*samples, *samples]
    q1, median, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return Timing(
        us=median,
        q1_us=q1,
        q3_us=q3,
        host_us=statistics.median(host) if host else None,
        how=how,
        largest_us=max(samples) if is_single else None,
        least_host_us=min(host) if host and is_single else None,
    )


_BUSY_SPREAD = 0.5
"""Spread above that of an idle machine."""
_LOADED_SPREAD = 0.1
"""Spread that shows other work if there are more threads than free cores."""


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """Cores and load of the host before a run."""

    cores: int
    """Cores that this process may use."""
    load: float | None
    """Programs at work on average over the minute before; None where the system does not count them."""

    @property
    def free(self) -> int:
        """Return the number of idle cores, at least 1."""
        return max(1, self.cores - round(self.load or 0.0))


def read_host_load() -> HostLoad:
    """Read cores and load of the host, before a run."""
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return HostLoad(cores=usable, load=None)
    return HostLoad(cores=usable, load=max(0.0, load - (count - usable)))  # others may have the rest


def busy(machine: HostLoad | None, spreads: Mapping[str, float], *, threads: int, repeats: int) -> str:
    """Warn of disturbed times, with the signs and the settings to change; "" without signs.

    :param machine: load of the host; None if a device computes.
    :param spreads: worst spread by name of the call: half the distance of the quartiles as a share of the median.
    """
    worst = max(spreads, key=lambda name: spreads[name], default="")
    spread = spreads.get(worst, 0.0)
    load = machine.load if machine and machine.load is not None else 0.0
    loaded = machine is not None and (
        load > machine.cores or (threads > machine.free and spread > _LOADED_SPREAD)
    )
    if not loaded and spread <= _BUSY_SPREAD:
        return ""
    signs = [f"times spread by up to ±{100 * spread:.0f} % ({worst})"] if spread > _LOADED_SPREAD else []
    settings = [f"more --repeats ({repeats} here)"]
    if machine and loaded:
        cores = f"{machine.cores} core{'s' * (machine.cores > 1)}"
        signs.insert(0, f"{load:.1f} programs were at work on {cores} before the run")
    if machine and threads > (least := machine.free if loaded else 1):
        settings.insert(0, f"OMP_NUM_THREADS={least} ({threads} threads here)")
    return (
        f"The {'machine' if machine else 'machine or its device'} was busy: {', and '.join(signs)}. "
        f"Repeat it on an idle one, or with {' and '.join(settings)}."
    )
