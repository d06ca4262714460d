"""Times page plans beside a copy of their block table; prints Markdown.

    python benchmarks/paged_kv.py                     # triton-gumbel and native, on a CUDA device

The device's time is that of the bench's own timer: CUDA graphs over block tables in rotation, out of a cold cache. The
host's is the time until a call returns on an idle device, as an engine without graphs meets it: every plan gets new
buffers.
"""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import click
import torch
from tables import head
from torch import Tensor

import tokendraw
from tokendraw_bench import Call, Failure, Timing, markdown_table, timer_for

_SHAPES = ((1, 8192), (16, 64), (256, 64), (256, 512), (1024, 128), (1024, 512), (4096, 512), (16_384, 256))
_SMALL = ((0, 4), (16, 64))
_PAGE_SIZE = 16
_COPY = "copy"


@click.command()
@click.option("--device", default="cuda", show_default=True, metavar="DEVICE")
@click.option(
    "--planner",
    "planners",
    multiple=True,
    default=("triton-gumbel", "native"),
    show_default=True,
    metavar="NAME",
    help="May be given again.",
)
@click.option(
    "--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Samples of a median."
)
@click.option("--small", is_flag=True, help="Seconds on a CPU: shows that the command works, and no more.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def main(device: str, planners: tuple[str, ...], repeats: int, small: bool, output: Path | None) -> None:
    """Time plans of batches of B requests whose block tables have W columns."""
    target = torch.empty(0, device=device).device
    plans = {name: tokendraw.load("plan_paged_kv", name, device=target).plan for name in planners}
    plans |= {f"{name}, no page_indices": _without_pages(plan) for name, plan in plans.items()}
    timer = timer_for(target, repeats)
    times, waits = [], []
    for requests, width in _SMALL if small else _SHAPES:
        generator = torch.Generator(target).manual_seed(1)
        count = timer.buffers(max(4 * requests * width, 1))
        tables = [_integers(2**31 - 1, (requests, width), generator) for _ in range(count)]
        seq_lens = _integers(width * _PAGE_SIZE + 1, (requests,), generator)
        copied = torch.empty_like(tables[0])
        calls: dict[str, Callable[[Tensor], object]] = {_COPY: copied.copy_}
        for name, plan in plans.items():
            calls[name] = _planned(plan, seq_lens)
        found = timer.time({name: Call(draw=call) for name, call in calls.items()}, tables)
        batch = f"{requests} x {width}"
        times.append([batch, *(_beside_the_copy(found, name) for name in calls)])
        waits.append([batch, *(_until_it_returns(call, tables[0], small=small) for call in calls.values())])
    titles = ["B x W", _COPY, *plans]
    parts = [
        f"`{shlex.join(['python', 'benchmarks/paged_kv.py', *sys.argv[1:]])}`",
        head(target, planners),
        f"Microseconds, medians of {repeats} in turns, {timer.method}; in brackets the ratio to a copy of the block "
        f"table, `copy_`. Pages of {_PAGE_SIZE} tokens, lengths from 0 to W pages.",
        markdown_table(titles, times, in_words=titles[:1]),
        "Microseconds until a call returns on an idle device: median, and in brackets the least.",
        markdown_table(titles, waits, in_words=titles[:1]),
    ]
    text = "\n\n".join(parts) + "\n"
    click.echo(text)
    if output is not None:
        output.write_text(text, encoding="utf-8")


def _planned(plan: Callable[..., object], seq_lens: Tensor) -> Callable[[Tensor], object]:
    return lambda table: plan(seq_lens, table, _PAGE_SIZE)


def _without_pages(plan: Callable[..., object]) -> Callable[..., object]:
    return lambda *arguments: plan(*arguments, page_indices=False)


def _integers(end: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(end, shape, dtype=torch.int32, generator=generator, device=generator.device)


def _beside_the_copy(found: dict[str, Timing | Failure], name: str) -> str:
    entry, copy = found[name], found[_COPY]
    if isinstance(entry, Failure):
        return entry.reason
    ratio = "" if name == _COPY or isinstance(copy, Failure) else f" ({entry.us / copy.us:.2f}x)"
    return f"{entry.us:.1f}{ratio}"


def _until_it_returns(call: Callable[[Tensor], object], table: Tensor, *, small: bool) -> str:
    times = []
    for number in range(20 if small else 320):
        if table.device.type != "cpu":
            torch.accelerator.synchronize(table.device)
        start = perf_counter()
        call(table)
        if number >= 10:
            times.append(1e6 * (perf_counter() - start))
    return f"{statistics.median(times):.1f} ({min(times):.1f})"


if __name__ == "__main__":
    main()
