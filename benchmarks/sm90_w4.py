"""Times the native packer of 4-bit weights beside a copy of the same bytes, and prints a table.

    python benchmarks/sm90_w4.py --output benchmarks/results/cpu_sm90_w4.md
    python benchmarks/sm90_w4.py --device cuda --output benchmarks/results/h200_sm90_w4.md

The weights are those of GPT-OSS, rows of 2880 columns; v2 needs a multiple of 128, 2944. The copy is ``copy_`` into a
tensor that is there; packing makes its tensor. Medians, and the most memory beyond the result that was in use, in
experts.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from tables import head
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import tokendraw

ROWS = 5760
COLUMNS = {"v1": 2880, "v2": 2944}
WAYS = [("fp4", "v1"), ("fp4", "v2"), ("int4", "v1"), ("int4", "v2"), ("fp4_fp8", "v2")]
HEAD = ["| call | bytes | ms | copy, ms | ratio | extra memory |", "| --- | --: | --: | --: | --: | --: |"]


def milliseconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median time of a call, on the device where it computes there."""
    times = []
    for _ in range(repeats + 2):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(device)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize(device)
            times.append(start.elapsed_time(end))
        else:
            begin = perf_counter()
            call()
            times.append((perf_counter() - begin) * 1e3)
    return statistics.median(times[2:])


def peak(call: Callable[[], Tensor], device: torch.device) -> int:
    """Bytes beyond the result that a call needed at once."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        needed = call().nbytes
        return torch.cuda.max_memory_allocated(device) - before - needed
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        needed = call().nbytes
    assert found.profiler is not None
    events: list[Any] = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in events), initial=0)) - needed


def line(name: str, call: Callable[[], Tensor], given: Tensor, repeats: int) -> str:
    """One line of the table."""
    device, target = given.device, torch.empty_like(given)
    copy = milliseconds(lambda: target.copy_(given), device, repeats)
    taken = milliseconds(call, device, repeats)
    extra = peak(call, device) / given[0].nbytes
    return f"| {name} | {given.nbytes:,} | {taken:.2f} | {copy:.2f} | {taken / copy:.1f} | {extra:.2f} |"


def table(device: torch.device, experts: int, repeats: int) -> list[str]:
    """The lines of the result, in Markdown."""
    packer: Any = tokendraw.load("pack_sm90_w4", "native", device=device)
    lines = list(HEAD)

    def add(name: str, call: Callable[[], Tensor], given: Tensor) -> None:
        lines.append(line(name, call, given, repeats))
        print(lines[-1], flush=True)

    def given(layout: str, values: int) -> Tensor:
        shape = (experts, ROWS, COLUMNS[layout] // values)
        return torch.randint(256, shape, dtype=torch.uint8, device=device)

    for format, layout in WAYS:
        weights, choice = given(layout, 2), {"format": format, "layout": layout}
        name = f"weights, {format}, {layout}"
        packed = packer.pack_weights(weights, **choice)
        assert torch.equal(packer.unpack_weights(packed, **choice), weights)
        add(f"pack {name}", lambda w=weights, c=choice: packer.pack_weights(w, **c), weights)
        add(f"unpack {name}", lambda p=packed, c=choice: packer.unpack_weights(p, **c), packed)
    scales = given("v2", 32)
    for layout in COLUMNS:
        packed = packer.pack_scales(scales, layout=layout)
        assert torch.equal(packer.unpack_scales(packed, layout=layout), scales)
        add(f"pack scales, {layout}", lambda x=layout: packer.pack_scales(scales, layout=x), scales)
        add(
            f"unpack scales, {layout}",
            lambda p=packed, x=layout: packer.unpack_scales(p, layout=x),
            packed,
        )
    return lines


def main() -> None:
    """Print the table, and write it where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--experts", type=int, help="4 on a CPU, 32 elsewhere")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.empty(0, device=options.device).device
    experts = options.experts or (4 if device.type == "cpu" else 32)
    where = head(device, ("native",))
    print(where)
    lines = table(device, experts, options.repeats)
    if options.output:
        chosen = "" if options.device == "cpu" else f"--device {options.device} "
        chosen += f"--experts {options.experts} " if options.experts else ""
        about = (
            f"{experts} experts of {ROWS} rows; {torch.get_num_threads()} threads. "
            if device.type == "cpu"
            else (f"{experts} experts of {ROWS} rows. ")
        )
        options.output.write_text(
            f"`python benchmarks/sm90_w4.py {chosen}--output {options.output}`\n\n{where}\n{about}"
            "Extra memory in experts.\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
