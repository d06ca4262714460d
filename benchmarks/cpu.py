"""Times the native sampler on a CPU against the pipelines of engines, in a single process, and prints a table.

    python benchmarks/cpu.py --output benchmarks/results/cpu.md

The pipelines, in plain torch:

* filtered: divide by T, sort, mask by the k-th value, softmax, cumsum, mask by p, scatter back, softmax, divide by
  exponential noise, argmax. Three sorts' worth of traffic, whatever k and p are.
* unfiltered: softmax, divide by ``exponential_`` noise, argmax.

Extra memory is the growth of the process's peak resident size over one call in a fresh process.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import tokendraw
from tokendraw_bench import TimedCall, markdown_table, timer_for

BATCH, VOCAB_SIZE, THREADS, TEMPERATURE = 64, 128256, 2, 0.8
FAMILIES = "zipf 1.0", "zipf 1.5", "gaussian", "flat"
FILTERS = {
    "k = 50, p = 0.9": {"top_k": 50, "top_p": 0.9},
    "k = 50": {"top_k": 50},
    "p = 0.9": {"top_p": 0.9},
    "min-p = 0.05": {"min_p": 0.05},
    "none": {},
    "greedy": {"temperature": 0.0},
}
COLUMNS = (
    "logits",
    "filters",
    "pipeline ms",
    "native ms",
    "times faster",
    "extra memory, [B, V] float32 buffers",
)


def logits_of(family: str) -> Tensor:
    """Make rows [BATCH, VOCAB_SIZE] float32 of a family, ids shuffled."""
    generator, logits = torch.Generator().manual_seed(1), torch.empty(BATCH, VOCAB_SIZE)
    if family == "gaussian":
        return logits.normal_(generator=generator)
    if family == "flat":
        return logits.uniform_(0.0, 0.1, generator=generator)
    exponent = float(family.removeprefix("zipf "))  # the token of rank r has probability r ** -exponent
    ranked = -exponent * torch.log(torch.arange(1, VOCAB_SIZE + 1, dtype=torch.float32))
    for row in logits:  # filled in place, so that the peak of the process is what stays
        row.copy_(ranked[torch.randperm(VOCAB_SIZE, generator=generator)])
    return logits


def pipeline(
    logits: Tensor,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """Draw as an engine without tokendraw does."""
    if temperature == 0:
        return logits.argmax(-1)
    y = logits / temperature
    if top_k or top_p < 1 or min_p:
        y, order = y.sort(dim=-1, descending=True)
        if min_p:
            probability = y.softmax(-1)
            y = y.masked_fill(probability < min_p * probability[:, :1], -torch.inf)
        if top_k:
            y = y.masked_fill(y < y[:, top_k - 1 : top_k], -torch.inf)
        if top_p < 1:
            probability = y.softmax(-1)
            y = y.masked_fill(probability.cumsum(-1) - probability >= top_p, -torch.inf)
        y = torch.empty_like(y).scatter_(-1, order, y)
    probability = y.softmax(-1)
    return probability.div_(torch.empty_like(probability).exponential_()).argmax(-1)


def native_for(filters: str, batch: int) -> Callable[[Tensor], object]:
    """Return a call of the native sampler for unseeded requests with some filters."""
    params = tokendraw.SamplingParams(**{"temperature": TEMPERATURE, **FILTERS[filters]})  # type: ignore[arg-type]
    metadata = tokendraw.SamplingMetadata.from_params([params] * batch)
    return partial(tokendraw.load_sampler("native", device="cpu").sample, metadata=metadata)


def print_memory(family: str, filters: str) -> None:
    """Print the rise of the peak resident size by a call, in MB, after a small call has loaded all libraries."""

    def peak_kilobytes() -> int:  # ``getrusage`` would include the parent's before exec (Linux)
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

    native, logits = native_for(filters, BATCH), logits_of(family)
    native_for(filters, 1)(logits[:1])
    before = peak_kilobytes()
    native(logits)
    print((peak_kilobytes() - before) * 1024 / 1e6)


def row_of(family: str, name: str, logits: Tensor) -> list[str]:
    """Time a line of the table."""
    calls = {
        "pipeline": TimedCall(draw=partial(pipeline, **FILTERS[name])),  # type: ignore[arg-type]
        "native": TimedCall(draw=native_for(name, BATCH)),
    }
    times = timer_for(logits.device, 7).time(calls, [logits])
    slow, fast = (times[call].us / 1e3 for call in calls)  # type: ignore[union-attr]
    command = [sys.executable, __file__, "--memory-of", family, name]
    megabytes = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    extra = 1e6 * megabytes / logits.nbytes
    cells = [family, name, f"{slow:.1f}", f"{fast:.1f}", f"{slow / fast:.1f}", f"{extra:.2f}"]
    print(" | ".join(cells), file=sys.stderr)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.memory_of:
        print_memory(*options.memory_of)
        return
    rows = []
    for family in FAMILIES:
        logits = logits_of(family)
        rows += [row_of(family, name, logits) for name in FILTERS]
    head = (
        f"[{BATCH}, {VOCAB_SIZE}] float32, T = {TEMPERATURE}, {THREADS} threads; torch {torch.__version__}, "
    )
    head += f"Python {platform.python_version()}, {platform.machine()}"
    text = f"{head}\n\n{markdown_table(COLUMNS, rows, COLUMNS[:2])}\n"
    print(text)
    if options.output:
        options.output.write_text(f"`python benchmarks/cpu.py --output {options.output}`\n\n{text}")


if __name__ == "__main__":
    main()
