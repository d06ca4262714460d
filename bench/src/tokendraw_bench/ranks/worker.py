"""Runs on every rank of ``tokendraw bench --ranks``: joins the others, and times the same cells with them."""

from __future__ import annotations

import datetime
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tokendraw import TokendrawError
from tokendraw.plugin import Host
from tokendraw.vocab_parallel import transport_of
from tokendraw_bench.contenders import Contender, contenders
from tokendraw_bench.operations import sample_on_ranks
from tokendraw_bench.operations.sample_on_ranks import RankCell
from tokendraw_bench.ranks.traffic import CountingTransport, peak_memory
from tokendraw_bench.report.lines import BEHIND_GATHER, Line, Report, Traffic
from tokendraw_bench.run import make_inputs, report_of, timer_for
from tokendraw_bench.timing import contention
from tokendraw_bench.timing.timer import Call, Timing
from tokendraw_bench.timing.together import Ranks

_TIMEOUT = datetime.timedelta(minutes=5)
"""How long a rank waits for the others, which make inputs and compile kernels between collectives."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Says what all ranks time."""

    cells: tuple[RankCell, ...]
    names: tuple[str, ...]
    """Samplers; each stands beside itself behind an all-gather of the logits."""
    device_type: str
    backend: str
    """Backend of torch.distributed."""
    host: Host
    repeats: int
    command: str


def time_task(task: Task) -> Report | str | None:
    """Time a task together with the other ranks, in a process that torchrun has started.

    :returns: on rank 0 the report; the words of an error of tokendraw, which every rank finds; else None.
    """
    device = torch.device(task.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, contention.look().cores // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group(task.backend, timeout=_TIMEOUT)
    try:
        report = _report(task, device)
        return report if dist.get_rank() == 0 else None
    except TokendrawError as error:
        return str(error)
    finally:
        gc.collect()  # NCCL waits for the end of every graph that it is in
        dist.destroy_process_group()


def on_ranks(names: Sequence[str], device: torch.device) -> tuple[Contender, ...]:
    """Find the samplers of these names, of no name all that can; behind each stands the same with an all-gather."""
    sharded = contenders(names, device, sample_on_ranks.BENCH)
    gathered = contenders([c.name for c in sharded], device, sample_on_ranks.GATHERED) if sharded else ()
    pairs = zip(sharded, gathered, strict=True)
    found = [c for own, other in pairs for c in (own, replace(other, name=BEHIND_GATHER + other.name))]
    return tuple(replace(c, prepare=partial(_both_ways, c.prepare)) for c in found)


def _both_ways(
    prepare: Callable[..., Sequence[Call]], cell: RankCell, arguments: Any, inputs: Any
) -> Sequence[Call]:
    """Time what a CUDA graph can capture both in one and without."""
    calls = prepare(cell, arguments, inputs)
    if inputs.device.type != "cuda":
        return calls
    eager = [replace(call, graph_safe=False, way="eager") for call in calls]
    return [*eager, *(replace(call, way="graph") for call in calls if call.graph_safe)]


def _report(task: Task, device: torch.device) -> Report:
    found = on_ranks(task.names, device)
    report = report_of(
        task.cells,
        found,
        device=device,
        host=task.host,
        repeats=task.repeats,
        command=task.command,
        timer=timer_for(device, task.repeats, Ranks(device)),
    )
    size = dist.get_world_size()
    lines = tuple(replace(line, traffic=_traffic(line, found, device)) for line in report.lines)
    return replace(
        report,
        device=device.type,
        host=f"{task.host}, {size} rank{'s' * (size > 1)} by {task.backend}",
        lines=lines,
    )


def _traffic(line: Line, found: Sequence[Contender], device: torch.device) -> dict[str, Traffic]:
    """Count and measure a call of every contender that could be timed."""
    inputs = make_inputs(line.cell, device, 1)[0]
    return {
        one.name: _most(_traffic_of(one, line.cell, inputs, device))
        for one in found
        if isinstance(line.entries[one.name], Timing)
    }


def _traffic_of(one: Contender, cell: RankCell, inputs: Any, device: torch.device) -> Traffic:
    counting = CountingTransport(transport_of(None))
    call = one.prepare(cell, sample_on_ranks.arguments(cell, device, counting), inputs)[0]
    call.draw(inputs)  # at the first one the ranks agree
    counting.collectives = counting.received = 0
    with torch.no_grad(), peak_memory(device) as peak:
        call.draw(inputs)
        return Traffic(collectives=counting.collectives, received=counting.received, peak=peak())


def _most(own: Traffic) -> Traffic:
    every: list[Traffic] = transport_of(None).gather_objects(own)
    return Traffic(
        collectives=max(t.collectives for t in every),
        received=max(t.received for t in every),
        peak=max(t.peak for t in every),
    )
