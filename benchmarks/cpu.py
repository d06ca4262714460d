"""Times the native sampler on a CPU against the pipelines of engines, in a single process, and prints a table.

    python benchmarks/cpu.py                            # [64, 128256] float32, 2 threads
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
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import tokendraw

TEMPERATURE, K, P = 0.8, 50, 0.9
FILTERS = {
    "k = 50, p = 0.9": {"top_k": K, "top_p": P},
    "k = 50": {"top_k": K},
    "p = 0.9": {"top_p": P},
    "min-p = 0.05": {"min_p": 0.05},
    "none": {},
    "greedy": {"temperature": 0.0},
}


def logits_of(family: str, batch: int, vocab_size: int) -> Tensor:
    """Make rows [batch, vocab_size] float32 of a family, ids shuffled."""
    generator, logits = torch.Generator().manual_seed(1), torch.empty(batch, vocab_size)
    if family == "gaussian":
        return logits.normal_(generator=generator)
    if family == "flat":
        return logits.uniform_(0.0, 0.1, generator=generator)
    exponent = float(family.removeprefix("zipf "))  # the token of rank r has probability r ** -exponent
    ranked = -exponent * torch.log(torch.arange(1, vocab_size + 1, dtype=torch.float32))
    for row in logits:  # filled in place, so that the peak of the process is what stays
        row.copy_(ranked[torch.randperm(vocab_size, generator=generator)])
    return logits


def filtered_pipeline(logits: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Sort, mask, softmax, cumsum, mask, scatter, exponential noise, argmax."""
    y, order = (logits / TEMPERATURE).sort(dim=-1, descending=True)
    if min_p:
        probability = y.softmax(-1)
        y = y.masked_fill(probability < min_p * probability[:, :1], -torch.inf)
    if top_k:
        y = y.masked_fill(y < y[:, top_k - 1 : top_k], -torch.inf)
    if top_p < 1:
        probability = y.softmax(-1)
        y = y.masked_fill(probability.cumsum(-1) - probability >= top_p, -torch.inf)
    probability = torch.empty_like(y).scatter_(-1, order, y).softmax(-1)
    return probability.div_(torch.empty_like(probability).exponential_()).argmax(-1)


def unfiltered_pipeline(logits: Tensor) -> Tensor:
    """Softmax, exponential noise, argmax."""
    probability = (logits / TEMPERATURE).softmax(-1)
    return probability.div_(torch.empty_like(probability).exponential_()).argmax(-1)


def pipeline_for(filters: dict[str, float]) -> Callable[[Tensor], Tensor]:
    """Return the pipeline of an engine without tokendraw for some filters."""
    if "temperature" in filters:
        return lambda logits: logits.argmax(-1)
    if not filters:
        return unfiltered_pipeline
    return lambda logits: filtered_pipeline(logits, **filters)  # type: ignore[arg-type]


def native_for(filters: dict[str, float], batch: int) -> Callable[[Tensor], tokendraw.SamplerOutput]:
    """Return a call of the native sampler with some filters on every row, unseeded."""
    sampler = tokendraw.load_sampler("native", device="cpu")
    params = tokendraw.SamplingParams(**{"temperature": TEMPERATURE, **filters})  # type: ignore[arg-type]
    metadata = tokendraw.SamplingMetadata.from_params([params] * batch)
    return lambda logits: sampler.sample(logits, metadata)


def milliseconds(
    slow: Callable[[], object], fast: Callable[[], object], rounds: int = 7
) -> tuple[float, float]:
    """Return median wall times of two calls, in turns, so that a busy moment affects each call."""
    times: dict[Callable[[], object], list[float]] = {slow: [], fast: []}
    for warm in (False, *[True] * rounds):
        for call, repeats in ((slow, 1), (fast, 3)):
            for _ in range(repeats):
                start = time.perf_counter()
                call()
                if warm:
                    times[call].append(time.perf_counter() - start)
    return 1e3 * median(times[slow]), 1e3 * median(times[fast])


def megabytes_of(arguments: list[str]) -> float:
    """Measure the growth of peak memory in a call, in a fresh process of this script."""
    command = [sys.executable, __file__, "--memory-of", *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_memory(family: str, filters: str, batch: int, vocab_size: int) -> None:
    """Print the rise of the peak resident size by a call, in MB, after a small call has loaded all libraries."""
    call, logits = native_for(FILTERS[filters], batch), logits_of(family, batch, vocab_size)
    native_for(FILTERS[filters], 1)(logits[:1])
    before = peak_kilobytes()
    call(logits)
    print((peak_kilobytes() - before) * 1024 / 1e6)


def peak_kilobytes() -> int:
    """Return the peak resident size of this process. ``getrusage`` would include its parent's before exec (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def table(batch: int, vocab_size: int, families: list[str], *, memory: bool) -> list[str]:
    """Return the lines of the table in Markdown."""
    lines = [
        "| logits | filters | pipeline ms | native ms | times faster | extra memory, [B, V] float32 buffers |",
        "|---|---|--:|--:|--:|--:|",
    ]
    buffer = batch * vocab_size * 4 / 1e6
    for family in families:
        logits = logits_of(family, batch, vocab_size)
        for name, filters in FILTERS.items():
            baseline, native = pipeline_for(filters), native_for(filters, batch)
            slow, fast = milliseconds(partial(baseline, logits), partial(native, logits))
            shape = [str(batch), str(vocab_size)]
            extra = f"{megabytes_of([family, name, *shape]) / buffer:.2f}" if memory else ""
            lines.append(f"| {family} | {name} | {slow:.1f} | {fast:.1f} | {slow / fast:.1f} | {extra} |")
            print(lines[-1], file=sys.stderr)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=128256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--families", nargs="+", default=["zipf 1.0", "zipf 1.5", "gaussian", "flat"])
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--memory-of", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        family, filters, batch, vocab_size = options.memory_of
        print_memory(family, filters, int(batch), int(vocab_size))
        return
    shape = f"[{options.batch}, {options.vocab_size}] float32, T = {TEMPERATURE}, {options.threads} threads"
    lines = [
        f"{shape}; torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}",
        "",
    ]
    lines += table(options.batch, options.vocab_size, options.families, memory=not options.no_memory)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(f"`python benchmarks/cpu.py --output {options.output}`\n\n{text}")


if __name__ == "__main__":
    main()
