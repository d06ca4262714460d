"""Times a sampler on a busy CPU, with a single thread and with several in the same run.

    python benchmarks/busy_cpu.py                       # beside 0, 2 and 6 loops, with 2 threads
    python benchmarks/busy_cpu.py --loads 6 --batches 64 --vocab-sizes 128256 --rounds 30
    python benchmarks/busy_cpu.py --sampler cpu         # the compiled one in place of native

A load of n is n child processes that loop for ever. Each call is timed with one thread and with several, in turns. A
sample is one call, or the mean of several in a row where calls are short. A line of the table stands for the cells of
its filters, logprobs and batch, one for each vocabulary and dtype, and shows the cell with the largest ratio of
medians, several threads to one.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from cpu import TEMPERATURE, K, P, logits_of
from torch import Tensor

import tokendraw

FILTERS = {
    "none": ("gaussian", {}),
    "k = 50": ("gaussian", {"top_k": K}),
    "k = 50, p = 0.9": ("gaussian", {"top_k": K, "top_p": P}),
    "p = 0.9, narrow": ("zipf 1.5", {"top_p": P}),
    "p = 0.9, wide": ("flat", {"top_p": P}),
    "min-p = 0.05": ("gaussian", {"min_p": 0.05}),
}
"""The family of the logits, and the parameters."""
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
SAMPLE_MS = 25.0
"""What the calls of a sample compute on an idle core, several turns of the scheduler: a call shorter than a turn takes
its own time or that of all turns of the others, and a median would show either."""
LEAST_ROUNDS = 5
SECONDS_OF_A_LOAD = 0.5
"""Until the scheduler has seen what the loops take."""


@dataclass(frozen=True)
class Timed:
    """Milliseconds of the calls of a cell with a single thread and with several."""

    cell: str
    one: list[float]
    several: list[float]

    @property
    def ratio(self) -> float:
        """Return the median with several threads as a multiple of that with a single thread."""
        return median(self.several) / median(self.one)

    def columns(self) -> str:
        """Write the columns of the table."""
        worst = max(self.several) / max(self.one)
        return (
            f"{self.cell} | {median(self.one):.1f} | {median(self.several):.1f} | {self.ratio:.2f} "
            f"| {max(self.one):.1f} | {max(self.several):.1f} | {worst:.2f} | {len(self.one)}"
        )


@contextlib.contextmanager
def loops(count: int) -> Iterator[None]:
    """Keep ``count`` child processes busy until the end of the block or of this process."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        while len(processes) < count:
            processes.append(subprocess.Popen([sys.executable, "-c", LOOP]))
        time.sleep(SECONDS_OF_A_LOAD if count else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def call_of(
    name: str, parameters: dict[str, float], logprobs: int | None, logits: Tensor
) -> Callable[[], object]:
    """Return a call of a sampler, unseeded, on all rows."""
    sampler = tokendraw.load_sampler(name, device="cpu")
    values = {"temperature": TEMPERATURE, "logprobs": logprobs, **parameters}
    params = tokendraw.SamplingParams(**values)  # type: ignore[arg-type]
    metadata = tokendraw.SamplingMetadata.from_params([params] * len(logits))
    return lambda: sampler.sample(logits, metadata)


def timed(cell: str, call: Callable[[], object], threads: int, rounds: int, seconds: float) -> Timed:
    """Time a call with a single thread and with several, in turns of alternating order.

    :param seconds: after which fewer than ``rounds`` rounds do, :data:`LEAST_ROUNDS` at least.
    """
    times: dict[int, list[float]] = {1: [], threads: []}
    torch.set_num_threads(1)
    repeats = 1 + int(SAMPLE_MS / min(milliseconds(call, 1) for _ in range(4)))
    end = time.perf_counter() + seconds
    for turn in range(rounds):
        if turn >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for number in (1, threads) if turn % 2 else (threads, 1):
            torch.set_num_threads(number)
            times[number].append(milliseconds(call, repeats))
    return Timed(cell, times[1], times[threads])


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Time ``repeats`` calls in a row, in milliseconds a call."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return 1e3 * (time.perf_counter() - start) / repeats


def lines_of(options: argparse.Namespace, load: int) -> Iterator[str]:
    """Time all cells beside a load, and write the lines of the table."""
    titles = ["filters", "logprobs", "batch", "cell", "1 thread ms", "threads ms", "ratio"]
    titles += ["1 thread worst", "threads worst", "ratio", "rounds"]
    yield f"| {' | '.join(titles)} |"
    yield "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|"
    found: dict[str, list[Timed]] = {}
    with loops(load):
        for batch, vocab_size in itertools.product(options.batches, options.vocab_sizes):
            for family, members in itertools.groupby(FILTERS.items(), key=lambda item: item[1][0]):
                rows = logits_of(family, batch, vocab_size)
                for (name, (_, parameters)), dtype, logprobs in itertools.product(
                    [*members], options.dtypes, options.logprobs
                ):
                    if name not in options.filters:
                        continue
                    logits = rows.to(getattr(torch, dtype))
                    call = call_of(options.sampler, parameters, logprobs or None, logits)
                    cell = f"{vocab_size} {dtype}"
                    result = timed(cell, call, options.threads, options.rounds, options.seconds)
                    found.setdefault(f"{name} | {logprobs} | {batch}", []).append(result)
                    print(
                        f"| {load} loops: {name} | {logprobs} | {batch} | {result.columns()} |",
                        file=sys.stderr,
                    )
    for head, results in found.items():
        yield f"| {head} | {max(results, key=lambda result: result.ratio).columns()} |"
    every = [result for results in found.values() for result in results]
    worst = max(max(result.several) / max(result.one) for result in every)
    yield ""
    yield (
        f"Beside {load} loops, {len(every)} cells: {options.threads} threads take {median(r.ratio for r in every):.2f} "
        f"times as long as one in the median, {max(r.ratio for r in every):.2f} in the worst cell; their worst call "
        f"takes {worst:.2f} times as long as the worst of one thread."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sampler", default="native")
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 2, 6])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 8, 64, 256])
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[32000, 128256])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--filters", nargs="+", choices=FILTERS, default=[*FILTERS])
    parser.add_argument("--logprobs", type=int, nargs="+", default=[0, 5])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--output", type=Path, help="a file that the table is added to")
    options = parser.parse_args()
    lines = []
    for load in options.loads:
        lines += ["", f"Beside {load} loops:", "", *lines_of(options, load)]
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    head = f"{os.cpu_count()} cores, 1 and {options.threads} threads; {versions}"
    command = shlex.join(["python", "benchmarks/busy_cpu.py", *sys.argv[1:]])
    text = "\n".join((f"`{command}`", "", head, *lines)) + "\n"
    print(text)
    if options.output:
        with options.output.open("a") as file:
            file.write(text)


if __name__ == "__main__":
    main()
