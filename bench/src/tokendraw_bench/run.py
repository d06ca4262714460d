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
from tokendraw_bench.floor import extra_memory, measure
from tokendraw_bench.operation import AnyCell
from tokendraw_bench.report import BenchReport, CellResult
from tokendraw_bench.timing import Failure, SamplePlan, TimedCall, Timer, Timing, WallTimer, read_host_load


def report_of(
    cells: Sequence[AnyCell],
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    host: Host,
    timer: Timer,
    command: str,
    **options: Any,
) -> BenchReport:
    """Time every contender on every cell, and record machine and versions.

    :param command: command that repeats the run.
    :param options: of :func:`run`.
    """
    machine = read_host_load()
    start = time.perf_counter()
    lines = run(cells, contenders, device=device, timer=timer, **options)
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
    starting: Callable[[AnyCell], None] = lambda cell: None,
    measures_memory: bool = False,
    keeps_going: bool = False,
) -> tuple[CellResult, ...]:
    """Time every contender on every cell with a timer.

    :param starting: called before each cell.
    :param measures_memory: whether to measure the extra memory of each call.
    :param keeps_going: whether the reason stands in place of the times of a cell that cannot be timed at all.
    :raises TokendrawError: a cell does not fit into memory, or no pass of the floor works.
    """
    lines: list[CellResult] = []
    key: object = None
    inputs: list[Any] = []
    figures: Mapping[str, float] = {}
    passes: Mapping[str, TimedCall] = {}
    for cell in cells:
        starting(cell)
        operation = operations.get(cell.operation)
        try:
            if key != operation.input_key(cell):
                key, inputs = None, []  # two sets of buffers need not fit
                inputs = _buffers(cell, device, timer)
                figures, passes = operation.measured(cell, inputs[0]), operation.passes(inputs[0])
                key = operation.input_key(cell)
            line = _line(cell, contenders, inputs, passes, device, timer, measures_memory)
            passes = {line.floor_by: passes[line.floor_by]}  # the fastest, until the inputs change
            lines.append(replace(line, figures=figures))
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
        from tokendraw_bench.cuda_graphs import CudaTimer

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


def _buffers(cell: Any, device: torch.device, timer: Timer) -> list[Any]:
    try:
        return make_inputs(cell, device, timer.buffers(cell.nbytes))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        numbers = [axis for axis in operations.get(cell.operation).axes if not (axis.choices or axis.is_flag)]
        sizes = [n.option for n in numbers if replace(cell, **{n.field: n.minimum}).nbytes < cell.nbytes]
        raise TokendrawError(
            f"{cell} needs buffers of {cell.nbytes / 1e6:,.0f} MB on {device}, found no memory for them. "
            f"Pass a smaller {one_of(sizes)}."
        ) from error


def _line(
    cell: AnyCell,
    contenders: Sequence[Contender],
    inputs: list[Any],
    passes: Mapping[str, TimedCall],
    device: torch.device,
    timer: Timer,
    measures_memory: bool,
) -> CellResult:
    operation = operations.get(cell.operation)
    arguments = operation.arguments(cell, device)
    calls: dict[str, dict[str, TimedCall]] = {}
    entries: dict[str, Timing | Failure] = {}
    for contender in contenders:
        try:
            prepared = contender.prepare(cell, arguments, inputs[0])
            calls[contender.name] = {_key(contender.name, call): call for call in prepared}
        except SamplerUnavailableError as error:
            entries[contender.name] = Failure(reason=str(error))
        except Exception as error:  # of a plugin, which may raise what it likes
            entries[contender.name] = Failure(reason=format_error(error))
    every = {key: call for ways in calls.values() for key, call in ways.items()}
    times = measure(every, inputs, timer, passes=passes, subject=str(cell), floor=operation.floor)
    memory = {}
    for name, ways in calls.items():
        timings = {key: us for key in ways if isinstance(us := times.calls[key], Timing)}
        best = min(timings, key=lambda key: timings[key].us, default=next(iter(ways)))
        entries[name] = times.calls[best]
        if measures_memory and timings:
            memory[name] = extra_memory(ways[best].draw, inputs[0], device)
    return CellResult(
        cell=cell,
        buffers=len(inputs),
        floor=times.read,
        floor_by=times.read_by,
        entries={contender.name: entries[contender.name] for contender in contenders},
        ways={
            name: {call.way: times.calls[key] for key, call in ways.items()}
            for name, ways in calls.items()
            if len(ways) > 1
        },
        memory=memory,
    )


def _key(name: str, call: TimedCall) -> str:
    return f"{name}: {call.way}" if call.way else name
