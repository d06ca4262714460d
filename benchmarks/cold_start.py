"""Times what a sampler compiles before its first tokens, from an empty Triton cache; prints a table.

    python benchmarks/cold_start.py

In one process, one behind the other: ``load_sampler``, whose proof draw compiles; the first batch that mixes filters,
greedy rows and plain ones; a warmup for batches of 1 and 256 rows; and one for drafts, which begins where that ends.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams

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
def main(sampler: str, device: str, vocab_size: int, max_drafts: int) -> None:
    """Time the start of a process whose kernels nobody has compiled yet."""
    torch.empty(1, device=device)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        rows = list(timed(sampler, torch.device(device), vocab_size, max_drafts, Path(cache)))
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else device
    click.echo(f"{sampler} on {name}, {os.cpu_count()} cores, V = {vocab_size}, bfloat16, an empty cache.\n")
    click.echo("| what | s | kernels |\n| --- | --: | --: |")
    for what, seconds, kernels in rows:
        click.echo(f"| {what} | {seconds:.1f} | {kernels} |")


def timed(
    name: str, device: torch.device, vocab_size: int, max_drafts: int, cache: Path
) -> list[tuple[str, float, int]]:
    """Return what was done, the seconds that it took, and how many kernels it compiled."""
    found: list[tuple[str, float, int]] = []

    def take(what: str, act: Callable[[], object]) -> None:
        before, start = len(list(cache.rglob("*.source"))), time.perf_counter()
        act()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        seconds = time.perf_counter() - start
        found.append((what, seconds, len(list(cache.rglob("*.source"))) - before))

    made: list[tokendraw.Sampler] = []
    take("load_sampler", lambda: made.append(tokendraw.load_sampler(name, device=device)))
    (sampler,) = made
    params = [REQUESTS[i % len(REQUESTS)] for i in range(64)]
    metadata = SamplingMetadata.from_params(params, device=device, positions=range(64))
    logits = torch.randn(64, vocab_size, device=device).to(torch.bfloat16)
    take("first batch of 64", lambda: sampler.sample(logits, metadata))
    asked = {"dtypes": [torch.bfloat16], "batch_sizes": [1, 256]}
    take("warmup", lambda: sampler.warmup(vocab_size, **asked))
    take(
        f"warmup with max_drafts={max_drafts}",
        lambda: sampler.warmup(vocab_size, max_drafts=max_drafts, **asked),
    )
    return found


if __name__ == "__main__":
    main()
