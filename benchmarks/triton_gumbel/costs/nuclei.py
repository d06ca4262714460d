"""Times top-p alone by the size of the nucleus: the median and the largest of 200 batches.

Every batch has positions of its own, and logits of one of several buffers, so that the draws are others each time.
"""

# mypy: allow-untyped-calls
# torch.cuda's events have no types.

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from replays import captured
from setting import Findings, Setting, buffers_of, markdown
from torch import Tensor

from tokendraw_bench import Cell, Timer, mean_nucleus, metadata_of, timer_for

_FAMILIES = (
    "peaked-7",
    "peaked-30",
    "peaked-100",
    "peaked-300",
    "peaked-1000",
    "peaked-2000",
    "gaussian",
    "flat",
)
_SHAPES = ((1024, 151_936), (256, 151_936), (64, 128_256), (1, 128_256))
_BATCHES = 200
_MOST = 2.0
"""Times the median that the largest may take."""
_EVICTED = 256 << 20
"""Bytes that are read before each batch, several times the L2."""

Step = Callable[[], object]


def run(setting: Setting) -> Findings:
    """Time every family at every shape."""
    shapes = ((4, 4000),) if setting.small else _SHAPES
    timer, lines, holds = timer_for(setting.device, 3), [], True
    for batch, size in shapes:
        for dtype in ("bfloat16",) if setting.small else ("float32", "bfloat16"):
            for family in _FAMILIES:
                cell = Cell(batch, size, dtype, "top-p", family)
                line, good = _line(setting, cell, timer)
                lines.append(line)
                holds = holds and good
    titles = ["shape", "dtype", "logits", "nucleus", "read us"]
    titles += [f"{setting.sampler}, median us", "largest", "largest / median"]
    said = (
        f"Top-p alone, seeded; microseconds of single batches, {_BATCHES} a cell, each a CUDA graph out of a cold "
        f"cache, in brackets the median's ratio to torch.amax of the same logits. At most {_MOST:g} times the median."
    )
    return Findings(text=f"{said}\n\n{markdown(titles, lines, words=3)}", holds=holds)


def _line(setting: Setting, cell: Cell, timer: Timer) -> tuple[list[str], bool]:
    buffers = buffers_of(cell, setting.device, timer)[:8]
    metadata = metadata_of(cell, setting.device)
    reads: list[Step] = [lambda x=x: x.amax() for x in buffers]
    draws: list[Step] = [lambda x=x: setting.subject.sample(x, metadata) for x in buffers]
    times = _times(setting, {"read": reads, "draw": draws}, metadata.positions)
    read, middle, most = (
        statistics.median(times["read"]),
        statistics.median(times["draw"]),
        max(times["draw"]),
    )
    nucleus = sum(map(mean_nucleus, buffers)) / len(buffers)
    line = [f"{cell.batch} x {cell.vocab_size}", cell.dtype, cell.family, f"{nucleus:,.0f}", f"{read:.1f}"]
    line += [f"{middle:.1f} ({middle / read:.2f}x)", f"{most:.1f}", f"{most / middle:.2f}"]
    return line, most <= _MOST * middle


def _times(setting: Setting, steps: dict[str, list[Step]], positions: Tensor) -> dict[str, list[float]]:
    """Time single batches on buffers in rotation, reads and draws in turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    if setting.device.type == "cpu":
        for name, each in steps.items():
            for step in each:
                begin = perf_counter()
                step()
                found[name].append(1e6 * (perf_counter() - begin))
        return found
    launches = {name: [captured(step)[0] for step in each] for name, each in steps.items()}
    evicted = torch.zeros(_EVICTED // 4, device=setting.device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for turn in range(_BATCHES):
        positions += 1
        for name, graphs in launches.items():
            evicted.amax()
            start.record()
            graphs[turn % len(graphs)].replay()
            end.record()
            end.synchronize()
            found[name].append(1e3 * start.elapsed_time(end))
    return found
