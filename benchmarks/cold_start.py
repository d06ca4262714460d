"""Times the compilations of a sampler before the first tokens, from an empty Triton cache; prints a table.

    python benchmarks/cold_start.py

In one process, one behind the other: ``load_sampler``, whose proof draw compiles; the first batch that mixes filters,
greedy rows and plain ones; a warmup for batches of 1 and 256 rows; and one for drafts, which begins where that ends.
With ``--processes 8``, in place of these: the first two by eight processes at once, which share the cache.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

import tokendraw
from tokendraw import Sampler, SamplingMetadata, SamplingParams

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

REQUESTS = (
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1),
    SamplingParams(temperature=0.0),
    SamplingParams(min_p=0.05),
)


@click.command()
@click.option("--sampler", default="triton-gumbel", show_default=True)
@click.option("--device", default="cuda", show_default=True)
@click.option("--vocab-size", type=click.IntRange(min=1), default=151936, show_default=True)
@click.option("--max-drafts", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--processes", type=click.IntRange(min=1), help="Start so many at once instead.")
def main(sampler: str, device: str, vocab_size: int, max_drafts: int, processes: int | None) -> None:
    """Time the start of a process with an empty cache of kernels."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        if processes:
            rows = [at_once(sampler, device, vocab_size, processes, Path(cache))]
        else:
            rows = list(timed(sampler, torch.device(device), vocab_size, max_drafts, Path(cache)))
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else device
    click.echo(f"{sampler} on {name}, {os.cpu_count()} cores, V = {vocab_size}, bfloat16, an empty cache.\n")
    click.echo("| what | s | kernels |\n| --- | --: | --: |")
    for what, seconds, kernels in rows:
        click.echo(f"| {what} | {seconds:.1f} | {kernels} |")


def timed(
    name: str, device: torch.device, vocab_size: int, max_drafts: int, cache: Path
) -> list[tuple[str, float, int]]:
    """Return the name of a start, its seconds, and its number of compiled kernels."""
    found: list[tuple[str, float, int]] = []

    def take(what: str, act: Callable[[], object]) -> None:
        before, start = _kernels(cache), time.perf_counter()
        act()
        _wait_for(device)
        seconds = time.perf_counter() - start
        found.append((what, seconds, _kernels(cache) - before))

    torch.empty(1, device=device)
    made: list[Sampler] = []
    take("load_sampler", lambda: made.append(tokendraw.load_sampler(name, device=device)))
    (sampler,) = made
    first_batch = _first_batch(vocab_size, device)
    take("first batch of 64", lambda: sampler.sample(*first_batch))
    asked = {"dtypes": [torch.bfloat16], "batch_sizes": [1, 256]}
    take("warmup", lambda: sampler.warmup(vocab_size, **asked))
    take(
        f"warmup with max_drafts={max_drafts}",
        lambda: sampler.warmup(vocab_size, max_drafts=max_drafts, **asked),
    )
    return found


def at_once(name: str, device: str, vocab_size: int, processes: int, cache: Path) -> tuple[str, float, int]:
    """Start several processes together; return a name, the seconds of the slowest, and the kernels of all."""
    context = multiprocessing.get_context("spawn")
    ready, seconds = context.Barrier(processes, timeout=120), context.SimpleQueue()
    started = [
        context.Process(target=_start, args=(name, device, vocab_size, ready, seconds), daemon=True)
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode:
            raise click.ClickException(f"a process ended with {process.exitcode}")
    slowest = max(seconds.get() for _ in started)
    what = f"load_sampler and first batch of 64, the slowest of {processes}"
    return what, slowest, _kernels(cache)


def _start(
    name: str,
    device: str,
    vocab_size: int,
    ready: Barrier,
    seconds: multiprocessing.SimpleQueue[float],
) -> None:
    first_batch = _first_batch(vocab_size, torch.device(device))
    ready.wait()
    start = time.perf_counter()
    tokendraw.load_sampler(name, device=device).sample(*first_batch)
    _wait_for(torch.device(device))
    seconds.put(time.perf_counter() - start)


def _first_batch(vocab_size: int, device: torch.device) -> tuple[torch.Tensor, SamplingMetadata]:
    params = [REQUESTS[i % len(REQUESTS)] for i in range(64)]
    metadata = SamplingMetadata.from_params(params, device=device, positions=range(64))
    return torch.randn(64, vocab_size, device=device).to(torch.bfloat16), metadata


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _kernels(cache: Path) -> int:
    return len(list(cache.rglob("*.source")))


if __name__ == "__main__":
    main()
