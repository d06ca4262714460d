r"""What the launches of a draw wait for, by the counters of Nsight Compute.

    M=gpu__time_duration.sum,smsp__issue_active.avg.pct_of_peak_sustained_active,smsp__inst_executed.sum
    M=$M,dram__throughput.avg.pct_of_peak_sustained_elapsed,launch__grid_size,launch__block_size
    ncu --clock-control none --profile-from-start off --warp-sampling-interval 2 --csv --page raw --print-units base \
        --metrics $M,group:smsp__pcsamp_warp_stall_reasons \
        python benchmarks/triton_gumbel profile-run > counters.csv
    python benchmarks/triton_gumbel profile --counters counters.csv

Each launch runs by itself and out of a flushed cache, so together they take longer than a call.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from setting import Findings, Setting, markdown

from tokendraw_bench import Cell, make_inputs, metadata_of

_CELLS = (
    Cell(1, 128_256, "bfloat16", "none", "gaussian"),
    Cell(1, 128_256, "bfloat16", "both", "gaussian"),
    Cell(1, 128_256, "bfloat16", "top-p", "gaussian"),
    Cell(64, 128_256, "bfloat16", "none", "gaussian"),
    Cell(64, 128_256, "bfloat16", "both", "gaussian"),
    Cell(64, 128_256, "bfloat16", "both", "flat"),
    Cell(64, 128_256, "bfloat16", "top-p", "gaussian"),
    Cell(64, 128_256, "float32", "top-p", "gaussian"),
    Cell(256, 151_936, "bfloat16", "both", "flat"),
    Cell(256, 151_936, "bfloat16", "top-p", "flat"),
    Cell(256, 151_936, "float32", "top-p", "gaussian"),
    Cell(1024, 151_936, "bfloat16", "none", "gaussian"),
    Cell(1024, 151_936, "bfloat16", "top-p", "flat"),
    Cell(1024, 151_936, "float32", "top-p", "gaussian"),
)
_SMALL = (Cell(2, 3000, "float32", "both", "gaussian"),)
_END = "bitwise_not"
"""Part of the name of a launch of torch's that stands behind each call."""
_STALLED = "smsp__pcsamp_warps_issue_stalled_"
_REASONS = {
    "issue": ("selected", "not_selected"),
    "memory": ("long_scoreboard", "lg_throttle", "drain", "membar"),
    "last result": ("wait", "dispatch_stall", "math_pipe_throttle"),
    "exchanges": ("short_scoreboard", "mio_throttle", "tex_throttle"),
    "fetch": ("no_instructions", "imc_miss", "branch_resolving"),
    "barriers": ("barrier",),
    "sleep": ("sleeping",),
    "other": ("misc", "warpgroup_arrive"),
}
"""Names of the stalls that the profiler samples, by what a warp waits for; the first is for nothing."""


def run(setting: Setting) -> Findings:
    """Draw once from each cell, for the profiler to look at."""
    cells = _SMALL if setting.small else _CELLS
    end = torch.zeros(1, dtype=torch.bool, device=setting.device)
    on_cuda = setting.device.type == "cuda"
    for cell in cells:
        (logits,) = make_inputs(cell, setting.device, 1)
        metadata = metadata_of(cell, setting.device)
        for _ in range(3):
            setting.subject.sample(logits, metadata)
        setting.synchronize()
        if on_cuda:
            torch.cuda.profiler.start()
        setting.subject.sample(logits, metadata)
        end.bitwise_not_()
        setting.synchronize()
        if on_cuda:
            torch.cuda.profiler.stop()
    return Findings(text=f"{len(cells)} profiled draws.", holds=True)


def table(setting: Setting, *, counters: Path) -> Findings:
    """Print what the profiler counted in ``profile-run``."""
    cells = _SMALL if setting.small else _CELLS
    calls = list(_calls(counters))
    if len(calls) != len(cells):
        return Findings(text=f"{counters} has {len(calls)} calls in place of {len(cells)}.", holds=False)
    lines = [
        [f"{cell.batch} x {cell.vocab_size}", cell.dtype, cell.filters, cell.family, *_line(launch)]
        for cell, launches in zip(cells, calls, strict=True)
        for launch in launches
    ]
    titles = ["shape", "dtype", "filters", "logits", "launch", "us", "issues, %", "memory, %"]
    titles += ["instructions a warp", *_REASONS]
    said = (
        "Of each launch the time, how many of the cycles in which a multiprocessor is active issue an instruction, the "
        "share of the memory's peak rate, and the instructions that a warp executes on average. Then what its warps "
        "do, in percent of samples: issue or wait for their turn; wait for memory, for the result of the instruction "
        "before, for exchanges with other threads and shared memory, for instructions and constants to be fetched, "
        "at barriers; sleep between two looks at what another program does."
    )
    return Findings(text=f"{said}\n\n{markdown(titles, lines, words=5)}", holds=True)


def _calls(path: Path) -> Iterator[list[Mapping[str, str]]]:
    """Yield the launches of each call; in the file the profiler's own lines come first, then names and units."""
    text = path.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(itertools.dropwhile(lambda line: not line.startswith('"ID"'), text))
    launches: list[Mapping[str, str]] = []
    for row in itertools.islice(rows, 1, None):
        if _END not in row["Kernel Name"]:
            launches.append(row)
            continue
        yield launches
        launches = []


def _line(row: Mapping[str, str]) -> list[str]:
    def of(name: str) -> float:
        return float(row[name].replace(",", "") or 0)

    warps = of("launch__grid_size") * of("launch__block_size") / 32
    stalls = Counter({name.removeprefix(_STALLED): of(name) for name in row if name.startswith(_STALLED)})
    samples = stalls.total() or 1
    return [
        row["Kernel Name"],
        f"{of('gpu__time_duration.sum') / 1000:.1f}",
        f"{of('smsp__issue_active.avg.pct_of_peak_sustained_active'):.0f}",
        f"{of('dram__throughput.avg.pct_of_peak_sustained_elapsed'):.0f}",
        f"{of('smsp__inst_executed.sum') / warps:,.0f}",
        *(f"{100 * sum(stalls[name] for name in names) / samples:.0f}" for names in _REASONS.values()),
    ]
