"""Times every cell of a grid: makes its inputs, asks who can serve it, and times them in turns."""

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
from tokendraw_bench.report.lines import Line, Report
from tokendraw_bench.timing import contention
from tokendraw_bench.timing.floor import measure
from tokendraw_bench.timing.timer import Call, Failure, Timer, Timing, WallTimer
from tokendraw_bench.timing.together import Together


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
) -> Report:
    """Time every contender on every cell, with what was found of the machine and the versions.

    :param repeats: number of samples of a median.
    :param command: the command that repeats it.
    :param starting: called before each cell.
    :param timer: takes the times; None: that of the device.
    :raises TokendrawError: a cell does not fit into memory, or nothing can be timed that ratios refer to.
    """
    timer = timer or timer_for(device, repeats)
    machine = contention.look()
    start = time.perf_counter()
    lines = run(cells, contenders, device=device, timer=timer, starting=starting)
    versions = {"tokendraw": tokendraw.__version__, "torch": str(torch.__version__)}
    for contender in contenders:
        versions |= contender.versions
    if any("Triton" in line.floor_by for line in lines):
        versions["triton"] = installed_version("triton") or ""
    return Report(
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
) -> tuple[Line, ...]:
    """Time every contender on every cell, as :func:`report_of` does, by a timer."""
    lines: list[Line] = []
    about: object = None
    inputs: list[Any] = []
    figures: Mapping[str, float] = {}
    for cell in cells:
        if starting:
            starting(cell)
        operation = operations.get(cell.operation)
        if about != operation.about_inputs(cell):
            inputs = []  # two sets of buffers need not fit
            inputs = _buffers(cell, device, timer)
            about, figures = operation.about_inputs(cell), operation.measured(cell, inputs[0])
        lines.append(_line(cell, contenders, inputs, figures, device, timer))
    return tuple(lines)


def timer_for(device: torch.device, repeats: int, together: Together | None = None) -> Timer:
    """Make the timer for a kind of device.

    :param repeats: number of samples of a median.
    :param together: the ranks that make each call with this process; None: it is alone.
    """
    if device.type == "cuda":
        from tokendraw_bench.timing.cuda_graphs import CudaTimer

        return CudaTimer(device, repeats, together=together)
    synchronize = None if device.type == "cpu" else torch.accelerator.synchronize
    return WallTimer(repeats, synchronize=synchronize, together=together)


def make_inputs(cell: AnyCell, device: torch.device, count: int) -> list[Any]:
    """Make ``count`` sets of inputs; they differ, and are the same in every run on a kind of device.

    Those of a :class:`tokendraw_bench.Cell` are buffers of logits [B, V].
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
    """Name the options that the size of a cell's inputs depends on."""
    numbers = [axis for axis in operations.get(cell.operation).axes if not (axis.choices or axis.is_flag)]
    return [n.option for n in numbers if replace(cell, **{n.field: n.least}).nbytes < cell.nbytes]


def _line(
    cell: AnyCell,
    contenders: Sequence[Contender],
    inputs: list[Any],
    figures: Mapping[str, float],
    device: torch.device,
    timer: Timer,
) -> Line:
    operation = operations.get(cell.operation)
    arguments = operation.arguments(cell, device)
    ways: dict[str, Sequence[Call]] = {}
    refused: dict[str, Failure] = {}
    for contender in contenders:
        try:
            ways[contender.name] = contender.prepare(cell, arguments, inputs[0])
        except SamplerUnavailableError as error:
            refused[contender.name] = Failure(reason=str(error))
        except Exception as error:  # of a plugin, which may raise what it likes
            refused[contender.name] = Failure(reason=format_error(error))
    calls = {_key(name, call): call for name, several in ways.items() for call in several}
    floor = operation.floor
    found = measure(calls, inputs, timer, passes=floor.passes(inputs[0]), subject=str(cell), floor=floor.name)
    timed = {
        name: {call.way: found.calls[_key(name, call)] for call in several} for name, several in ways.items()
    }
    return Line(
        cell=cell,
        figures=figures,
        buffers=len(inputs),
        floor=found.read,
        floor_by=found.read_by,
        entries={c.name: refused.get(c.name) or _best(timed[c.name]) for c in contenders},
        ways={name: entries for name, entries in timed.items() if len(entries) > 1},
    )


def _key(name: str, call: Call) -> str:
    return f"{name}: {call.way}" if call.way else name


def _best(ways: Mapping[str, Timing | Failure]) -> Timing | Failure:
    """Return the fastest; where none could be timed, why the first could not."""
    timings = [entry for entry in ways.values() if isinstance(entry, Timing)]
    return min(timings, key=lambda timing: timing.us) if timings else next(iter(ways.values()))
