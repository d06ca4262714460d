"""Times calls on a CUDA or ROCm device: CUDA graphs over buffers in rotation, out of a cold cache.

A sample is a replay of a graph of several calls, each on the next buffer. Before the sample a buffer of several times
the L2 is read, outside of the time: no inputs are left in the cache, and the host has queued the replay before the
device is ready for it. So the time includes neither the host nor the start of the graph, and small shapes are as cold
as large ones. For samples of single calls each set of inputs in turn is copied, outside of the time, into the one that
the graph was captured with.
"""

# mypy: allow-untyped-calls
# torch.cuda's events and streams have no types.

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tokendraw.tools import format_error
from tokendraw_bench.timing import (
    Clock,
    Draw,
    Failure,
    SamplePlan,
    TimedCall,
    Timing,
    summary,
)

_L2_MULTIPLE = 4
_MIN_WORKING_SET_BYTES = 128 << 20
_MIN_WORKING_SET_BYTES_ROCM = 1 << 30  # MI300 keeps 256 MB in the Infinity Cache behind its L2
_MIN_CALLS, _MAX_CALLS = 8, 64
_MAX_SAMPLE_US = 25_000.0
_MAX_HOST_SAMPLES, _MIN_HOST_SAMPLES = 20, 5
_MAX_HOST_SECONDS = 0.05
_WARM_UP_CALLS = 3


@dataclass(frozen=True, kw_only=True)
class _Lap:
    """A graph, or a function, that makes several calls, each on the next buffer."""

    launch: Callable[[], object]
    calls: int
    how: str


class CudaTimer:
    """Times calls on a CUDA or ROCm device.

    :param device: with its index.
    :param repeats: number of samples of a median.
    :param clock: clock of the host, for the time until a call returns.
    """

    def __init__(
        self,
        device: torch.device,
        repeats: int,
        *,
        clock: Clock = time.perf_counter,
        plan: SamplePlan | None = None,
    ) -> None:
        self.device = device
        self._plan = plan or SamplePlan()
        self.repeats = repeats
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        least = _MIN_WORKING_SET_BYTES_ROCM if torch.version.hip else _MIN_WORKING_SET_BYTES
        self.working_set = max(_L2_MULTIPLE * cache, least)
        sets = f"{self._plan.input_sets} " if self._plan.input_sets else ""
        calls = "CUDA graphs" if self._plan.graphs else "calls outside of CUDA graphs,"
        self.method = (
            f"{calls} over one buffer, out of a warm cache (L2 {cache >> 20} MiB)"
            if self._plan.warm
            else f"{calls} over {sets}buffers in rotation, out of a cold cache (L2 {cache >> 20} MiB, "
            f"{self.working_set >> 20} MiB read before each replay)"
        )
        self.method += ", single calls" * self._plan.single
        self._evicting = torch.zeros(self.working_set // 4, device=device)
        self._clock = clock

    def buffers(self, nbytes: int) -> int:
        """Return the number of sets of inputs that calls take in turn."""
        return self._plan.buffers(nbytes, working_set=self.working_set, most=_MAX_CALLS)

    def time(self, calls: Mapping[str, TimedCall], buffers: Sequence[Any]) -> dict[str, Timing | Failure]:
        """Capture every call, then replay each in turn, over and over."""
        try:
            with torch.cuda.device(self.device), torch.no_grad():
                return self._times(calls, buffers)
        finally:
            torch.cuda.empty_cache()  # the memory of the graphs, which may be most of the device's

    def _times(self, calls: Mapping[str, TimedCall], buffers: Sequence[Any]) -> dict[str, Timing | Failure]:
        laps: dict[str, _Lap] = {}
        host: dict[str, list[float]] = {}
        failed: dict[str, Failure] = {}
        samples: dict[str, list[float]] = {name: [] for name in calls}
        # Graphs that never run at the same time may share memory. A pool dies with the last of its graphs.
        pool = torch.cuda.graph_pool_handle()
        captured = [_empty_like(buffers[0])] if self._plan.single else buffers
        if self._plan.single:
            _copy_into(captured[0], buffers[0])
        for name, call in calls.items():
            try:
                timed = call if self._plan.graphs else replace(call, graph_safe=False)
                laps[name] = _lap(timed, captured, pool, count=int(self._plan.single))
                host[name] = self._host_us(call.draw, buffers)
            except Exception as error:  # of a plugin, which may raise what it likes
                laps.pop(name, None)
                failed[name] = Failure(reason=format_error(error))
        for turn in range(-1, self.repeats):
            if self._plan.single:
                _copy_into(captured[0], buffers[turn % len(buffers)])
            for name, lap in laps.items():
                if self._plan.single:
                    calls[name].renew()
                sample = self._sample_us(lap)
                if turn >= 0:
                    samples[name].append(sample)
        return {
            name: summary(samples[name], how=laps[name].how, host=host[name], is_single=self._plan.single)
            if name in laps
            else failed[name]
            for name in calls
        }

    def _sample_us(self, lap: _Lap) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._evicting.amax()
        if self._plan.warm:
            lap.launch()
        start.record()
        lap.launch()
        end.record()
        end.synchronize()
        return 1e3 * float(start.elapsed_time(end)) / lap.calls

    def _host_us(self, draw: Draw, buffers: Sequence[Any]) -> list[float]:
        """Measure the times until calls return on an idle device, whose queue never fills up.

        Calls that keep the device busy for milliseconds get fewer samples.
        """
        times: list[float] = []
        begin = self._clock()
        for buffer in itertools.islice(itertools.cycle(buffers), _MAX_HOST_SAMPLES):
            torch.cuda.synchronize()
            if len(times) >= _MIN_HOST_SAMPLES and self._clock() - begin > _MAX_HOST_SECONDS:
                break
            start = self._clock()
            draw(buffer)
            times.append(1e6 * (self._clock() - start))
        torch.cuda.synchronize()
        return times


def _empty_like(inputs: Any) -> Any:
    """Allocate a set of inputs with the shapes and strides of another."""
    return tree_map(
        lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device), inputs
    )


def _copy_into(target: Any, inputs: Any) -> None:
    """Copy a set of inputs into another with the same shapes."""
    for to, tensor in zip(tree_leaves(target), tree_leaves(inputs), strict=True):
        to.copy_(tensor)


def _lap(call: TimedCall, buffers: Sequence[Any], pool: Any, count: int = 0) -> _Lap:
    """Warm a call up, and capture repetitions.

    :param count: number of repetitions; 0: as many as time and buffers allow.
    """
    rotation = itertools.cycle(buffers)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as torch asks of what is captured afterwards
        for buffer in itertools.islice(rotation, _WARM_UP_CALLS):
            call.draw(buffer)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call.draw(next(rotation))
        end.record()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    call_us = 1e3 * start.elapsed_time(end)
    if not count:
        count = max(len(buffers), _MIN_CALLS)
        if call_us * count > _MAX_SAMPLE_US:
            count = max(1, int(_MAX_SAMPLE_US / call_us))
    inputs = list(itertools.islice(rotation, count))

    def launch() -> None:
        for buffer in inputs:
            call.draw(buffer)

    if not call.graph_safe:
        return _Lap(launch=launch, calls=count, how="eager")
    _check_sync_free(call.draw, inputs[0])
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool):
            launch()
    except Exception as error:
        _reset_failed_capture()
        raise (error.__context__ if isinstance(error.__context__, Exception) else error) from None
    return _Lap(launch=graph.replay, calls=count, how="graph")


def _check_sync_free(draw: Draw, buffer: Any) -> None:
    """Raise torch's RuntimeError if a call waits for the device: a failed capture would leave a broken state."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            draw(buffer)
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def _reset_failed_capture() -> None:
    """Capture a small graph, because torch's generator counts as captured until a capture succeeds."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
