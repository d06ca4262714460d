"""Times every cell of a grid: makes inputs, prepares the contenders, and times their calls in turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import tokendraw
from tokendraw import SamplerUnavailableError, TokendrawError
from tokendraw.plugin import Host
from tokendraw.resolution import installed_version
from tokendraw.tools import format_error, is_out_of_memory, one_of
from tokendraw_bench import operations
from tokendraw_bench.contenders import Contender
from tokendraw_bench.operation import AnyCell
from tokendraw_bench.report.lines import BenchReport, CellResult
from tokendraw_bench.timing import host_load
from tokendraw_bench.timing.floor import measure
from tokendraw_bench.timing.memory import extra_memory
from tokendraw_bench.timing.timer import Failure, SamplePlan, TimedCall, Timer, Timing, WallTimer


def report_of(
    cells: Sequence[AnyCell],
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    host: Host,
    repeats: int,
    command: str,
    starting: Callable[[AnyCell], None] | None = None,
    timer: Timer | None = None,
    measures_memory: bool = False,
    keeps_going: bool = False,
) -> BenchReport:
    """Time every contender on every cell, and record machine and versions.

    :param repeats: number of samples of a median.
    :param command: command that repeats the run.
    :param starting: called before each cell.
    :param timer: None: the timer of the device.
    :param measures_memory: whether to measure the extra memory of each call.
    :param keeps_going: whether the reason stands in place of the times of a cell that cannot be timed at all.
    :raises TokendrawError: a cell does not fit into memory, or no pass of the floor works.
    """
    timer = timer or timer_for(device, repeats)
    machine = host_load.read_host_load()
    start = time.perf_counter()
    lines = run(
        cells,
        contenders,
        device=device,
        timer=timer,
        starting=starting,
        measures_memory=measures_memory,
        keeps_going=keeps_going,
    )
    versions = {"tokendraw": tokendraw.__version__, "torch": str(torch.__version__)}
    for contender in contenders:
        versions |= contender.versions
    if any("Triton" in line.floor_by for line in lines):
        versions["triton"] = installed_version("triton") or ""
    return BenchReport(
        command=command,
        device=str(device),
        host=str(host),
        method=timer.method,
        repeats=timer.repeats,
        threads=torch.get_num_threads(),
        versions=versions,
        contenders=tuple(contender.name for contender in contenders),
        lines=lines,
        seconds=time.perf_counter() - start,
        machine=machine,
        omp_wait_policy=os.environ.get("OMP_WAIT_POLICY"),
    )


def run(
    cells: Sequence[AnyCell],
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    timer: Timer,
    starting: Callable[[AnyCell], None] | None = None,
    measures_memory: bool = False,
    keeps_going: bool = False,
) -> tuple[CellResult, ...]:
    """Time every contender on every cell with a timer, as :func:`report_of` does."""
    lines: list[CellResult] = []
    key: object = None
    inputs: list[Any] = []
    figures: Mapping[str, float] = {}
    passes: Mapping[str, TimedCall] = {}
    for cell in cells:
        if starting:
            starting(cell)
        operation = operations.get(cell.operation)
        try:
            if key != operation.input_key(cell):
                key, inputs = None, []  # two sets of buffers need not fit
                inputs = _buffers(cell, device, timer)
                figures, passes = operation.measured(cell, inputs[0]), operation.floor.passes(inputs[0])
                key = operation.input_key(cell)
            line = _line(cell, contenders, inputs, figures, passes, device, timer, measures_memory)
            passes = {line.floor_by: passes[line.floor_by]}  # the fastest, until the inputs change
            lines.append(line)
        except Exception as error:
            if not keeps_going:
                raise
            reason = str(error) if isinstance(error, TokendrawError) else format_error(error)
            failure = Failure(reason=reason)
            entries = {contender.name: failure for contender in contenders}
            lines.append(CellResult(cell=cell, buffers=0, floor=failure, floor_by="", entries=entries))
    return tuple(lines)


def timer_for(device: torch.device, repeats: int, plan: SamplePlan | None = None) -> Timer:
    """Make the timer for a kind of device.

    :param repeats: number of samples of a median.
    :param plan: how samples are taken; None: averages of several calls, out of a cold cache.
    """
    if device.type == "cuda":
        from tokendraw_bench.timing.cuda_graphs import CudaTimer

        return CudaTimer(device, repeats, plan=plan)
    synchronize = None if device.type == "cpu" else torch.accelerator.synchronize
    return WallTimer(repeats, synchronize=synchronize, plan=plan)


def make_inputs(cell: AnyCell, device: torch.device, count: int) -> list[Any]:
    """Make ``count`` different sets of inputs, the same in every run on a kind of device.

    Inputs of a :class:`tokendraw_bench.Cell` are buffers of logits [B, V].
    """
    generator = torch.Generator(device).manual_seed(1)
    operation = operations.get(cell.operation)
    return [operation.make_inputs(cell, device, generator) for _ in range(count)]


def _buffers(cell: AnyCell, device: torch.device, timer: Timer) -> list[Any]:
    try:
        return make_inputs(cell, device, timer.buffers(cell.nbytes))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TokendrawError(
            f"{cell} needs buffers of {cell.nbytes / 1e6:,.0f} MB on {device}, found no memory for them. "
            f"Pass a smaller {one_of(_sizes(cell))}."
        ) from error


def _sizes(cell: Any) -> list[str]:
    """List the options that change the size of a cell's inputs."""
    numbers = [axis for axis in operations.get(cell.operation).axes if not (axis.choices or axis.is_flag)]
    return [n.option for n in numbers if replace(cell, **{n.field: n.minimum}).nbytes < cell.nbytes]


def _line(
    cell: AnyCell,
    contenders: Sequence[Contender],
    inputs: list[Any],
    figures: Mapping[str, float],
    passes: Mapping[str, TimedCall],
    device: torch.device,
    timer: Timer,
    measures_memory: bool,
) -> CellResult:
    operation = operations.get(cell.operation)
    arguments = operation.arguments(cell, device)
    ways: dict[str, Sequence[TimedCall]] = {}
    failures: dict[str, Failure] = {}
    for contender in contenders:
        try:
            ways[contender.name] = contender.prepare(cell, arguments, inputs[0])
        except SamplerUnavailableError as error:
            failures[contender.name] = Failure(reason=str(error))
        except Exception as error:  # of a plugin, which may raise what it likes
            failures[contender.name] = Failure(reason=format_error(error))
    calls = {_key(name, call): call for name, options in ways.items() for call in options}
    times = measure(calls, inputs, timer, passes=passes, subject=str(cell), floor=operation.floor.name)
    entries = {
        name: {call.way: times.calls[_key(name, call)] for call in options} for name, options in ways.items()
    }
    return CellResult(
        cell=cell,
        figures=figures,
        buffers=len(inputs),
        floor=times.read,
        floor_by=times.read_by,
        entries={c.name: failures.get(c.name) or _best(entries[c.name]) for c in contenders},
        ways={name: tried for name, tried in entries.items() if len(tried) > 1},
        memory={
            name: extra_memory(call.draw, inputs[0], device)
            for name, tried in entries.items()
            if measures_memory and (call := _fastest(ways[name], tried)) is not None
        },
    )


def _fastest(calls: Sequence[TimedCall], times: Mapping[str, Timing | Failure]) -> TimedCall | None:
    """Return the fastest of the calls of a contender; None if none could be timed."""
    best = _best(times)
    return next((call for call in calls if times[call.way] is best and isinstance(best, Timing)), None)


def _key(name: str, call: TimedCall) -> str:
    return f"{name}: {call.way}" if call.way else name


def _best(ways: Mapping[str, Timing | Failure]) -> Timing | Failure:
    """Return the fastest time; without times, the failure of the first way."""
    timings = [entry for entry in ways.values() if isinstance(entry, Timing)]
    return min(timings, key=lambda timing: timing.us) if timings else next(iter(ways.values()))
