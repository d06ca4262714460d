"""Process of a rank of ``tokendraw bench --ranks``: joins the process group and times the cells with all ranks."""

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
from tokendraw_bench.contenders import Contender, find_contenders
from tokendraw_bench.operations import sample_on_ranks
from tokendraw_bench.operations.sample_on_ranks import RankCell
from tokendraw_bench.ranks.traffic import CountingTransport
from tokendraw_bench.report.lines import BEHIND_GATHER, BenchReport, CellResult, Traffic
from tokendraw_bench.run import make_inputs, report_of, timer_for
from tokendraw_bench.timing import host_load
from tokendraw_bench.timing.memory import memory_use
from tokendraw_bench.timing.timer import DistributedRanks, TimedCall, Timing

_TIMEOUT = datetime.timedelta(minutes=5)
"""Longest wait for another rank, which makes inputs and compiles kernels between collectives."""


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """The work of every rank."""

    cells: tuple[RankCell, ...]
    names: tuple[str, ...]
    """Samplers; each is also timed behind an all-gather of the logits."""
    device_type: str
    backend: str
    """Backend of torch.distributed."""
    host: Host
    repeats: int
    command: str


def time_task(task: RankTask) -> BenchReport | str | None:
    """Time a task on all ranks, in a process of torchrun.

    :returns: on rank 0 the report; the words of an error of tokendraw, which every rank finds; else None.
    """
    device = torch.device(task.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, host_load.read_host_load().cores // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group(task.backend, timeout=_TIMEOUT)
    try:
        report = _report(task, device)
        return report if dist.get_rank() == 0 else None
    except TokendrawError as error:
        return str(error)
    finally:
        gc.collect()  # NCCL waits for the end of every graph that it is in
        dist.destroy_process_group()


def rank_samplers(names: Sequence[str], device: torch.device) -> tuple[Contender, ...]:
    """Find samplers by name, without names all that draw over ranks, each followed by itself behind an all-gather."""
    sharded = find_contenders(names, device, sample_on_ranks.BENCH)
    gathered = find_contenders([c.name for c in sharded], device, sample_on_ranks.GATHERED) if sharded else ()
    pairs = zip(sharded, gathered, strict=True)
    samplers = [
        c for direct, other in pairs for c in (direct, replace(other, name=BEHIND_GATHER + other.name))
    ]
    return tuple(replace(c, prepare=partial(_both_ways, c.prepare)) for c in samplers)


def _both_ways(
    prepare: Callable[..., Sequence[TimedCall]], cell: RankCell, arguments: Any, inputs: Any
) -> Sequence[TimedCall]:
    """Make calls in a CUDA graph and without a graph, if a graph can capture them."""
    calls = prepare(cell, arguments, inputs)
    if inputs.device.type != "cuda":
        return calls
    eager = [replace(call, graph_safe=False, way="eager") for call in calls]
    return [*eager, *(replace(call, way="graph") for call in calls if call.graph_safe)]


def _report(task: RankTask, device: torch.device) -> BenchReport:
    samplers = rank_samplers(task.names, device)
    report = report_of(
        task.cells,
        samplers,
        device=device,
        host=task.host,
        repeats=task.repeats,
        command=task.command,
        timer=timer_for(device, task.repeats, DistributedRanks(device)),
    )
    size = dist.get_world_size()
    lines = tuple(replace(line, traffic=_traffic(line, samplers, device)) for line in report.lines)
    return replace(
        report,
        device=device.type,
        host=f"{task.host}, {size} rank{'s' * (size > 1)} by {task.backend}",
        lines=lines,
    )


def _traffic(line: CellResult, samplers: Sequence[Contender], device: torch.device) -> dict[str, Traffic]:
    """Measure the traffic of a call of every timed contender."""
    inputs = make_inputs(line.cell, device, 1)[0]
    return {
        sampler.name: _maximum(_traffic_of(sampler, line.cell, inputs, device))
        for sampler in samplers
        if isinstance(line.entries[sampler.name], Timing)
    }


def _traffic_of(sampler: Contender, cell: RankCell, inputs: Any, device: torch.device) -> Traffic:
    counting = CountingTransport(transport_of(None))
    call = sampler.prepare(cell, sample_on_ranks.arguments(cell, device, counting), inputs)[0]
    call.draw(inputs)  # at the first one the ranks agree
    counting.collectives = counting.received = 0
    with torch.no_grad(), memory_use(device) as use:
        call.draw(inputs)
        return Traffic(collectives=counting.collectives, received=counting.received, peak=use.peak())


def _maximum(traffic: Traffic) -> Traffic:
    by_rank: list[Traffic] = transport_of(None).gather_objects(traffic)
    return Traffic(
        collectives=max(t.collectives for t in by_rank),
        received=max(t.received for t in by_rank),
        peak=max(t.peak for t in by_rank),
    )
