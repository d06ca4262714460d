"""Times batches of which a few rows go to a companion; prints tables in Markdown.

    python benchmarks/routing.py                      # flashinfer beside native, on a CUDA device
    python benchmarks/routing.py --device cpu --chosen native --companion top-n-sigma

The first table has one batch with a seeded row, a greedy row and one that asks for processed logprobs, drawn in every
way there is; it is left out where the chosen sampler serves all three. The second has one seeded row in batches of any
size, where the rule of ``docs/engine-authors.md`` comes from: so its rows are divided whether or not that rule would,
and whether or not the chosen sampler serves the row. Samples of all calls are taken in turns, with the bench's own
timer.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import click
import torch
from tables import head, measured, time_and_ratio
from torch import Tensor

import tokendraw
from tokendraw import Sampler, SamplerOutput, SamplingMetadata, SamplingParams
from tokendraw_bench import TEMPERATURE, TOP_K, TOP_P, Cell, markdown_table

_BOTH = SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P)
_SEEDED = replace(_BOTH, seed=7)
_SPECIAL = {17: _SEEDED, 99: replace(_BOTH, temperature=0.0), 200: replace(_BOTH, logprobs=5)}
_MODE = "processed_logprobs"


@click.command()
@click.option("--chosen", default="flashinfer", show_default=True, metavar="NAME")
@click.option("--companion", default="native", show_default=True, metavar="NAME")
@click.option("--device", default="cuda", show_default=True, metavar="DEVICE")
@click.option(
    "--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Samples of a median."
)
@click.option("--small", is_flag=True, help="Seconds on a CPU: shows that the command works, and no more.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def main(chosen: str, companion: str, device: str, repeats: int, small: bool, output: Path | None) -> None:
    """Time batches that two samplers draw beside those that one of them draws."""
    target = torch.device(device)
    one, other = _load(chosen, target), _load(companion, target)
    both = _pair(chosen, companion, target) if chosen != companion else one
    threads = f" {torch.get_num_threads()} threads." if target.type == "cpu" else ""
    host = (
        ""
        if target.type == "cpu"
        else ("; in brackets the time until a call returns while the device has nothing to do")
    )
    parts = [
        f"`{shlex.join(['python', 'benchmarks/routing.py', *sys.argv[1:]])}`",
        head(target, (chosen, companion)) + threads,
        f"T = {TEMPERATURE}, k = {TOP_K}, p = {TOP_P}; microseconds, medians of {repeats} in turns{host}.",
    ]
    if both.resolution.companion:
        parts.append(_mixed_batches(both, other, repeats, small=small))
    parts.append(_one_row_leaves(one, other, repeats, small=small))
    text = "\n\n".join(parts) + "\n"
    click.echo(text)
    if output is not None:
        output.write_text(text, encoding="utf-8")


def _mixed_batches(both: Sampler, companion: Sampler, repeats: int, *, small: bool) -> str:
    """Time one batch with three rows that the chosen sampler does not serve.

    :param both: the chosen sampler with that companion.
    """
    rows, vocab_size, device = 32 if small else 256, 2000 if small else 151_936, both.device
    special = {row % rows: params for row, params in _SPECIAL.items()}
    lines = []
    for dtype in ("float32", "bfloat16"):
        cell = Cell(rows, vocab_size, dtype, "both", "gaussian")
        mixed, plain = _metadata(rows, special, device), _metadata(rows, {}, device)
        calls = {
            f"all rows {both.name}, none of them special": lambda x, m=plain: both.sample(x, m),
            f"three rows to {companion.name}": lambda x, m=mixed: both.sample(x, m),
            f"all rows {companion.name}": lambda x, m=mixed: companion.sample(x, m),
        }
        found = measured(cell, calls, device, repeats)
        lines += [[f"{rows} x {vocab_size} {dtype}", name, *time_and_ratio(found, name)] for name in calls]
    titles = ["batch", "who draws", "us (host)", "ratio to a read"]
    return markdown_table(titles, lines, in_words=titles[:1])


def _one_row_leaves(chosen: Sampler, companion: Sampler, repeats: int, *, small: bool) -> str:
    """Time batches of any size with one row for the companion."""
    device = chosen.device
    on_cpu = device.type == "cpu"
    widths = (2000,) if small else (32_000, 128_256 if on_cpu else 151_936)
    sizes = (16, 32) if small else (2, 4, 8, 16, 32, 64) if on_cpu else (2, 4, 8, 16, 32, 64, 128, 256)
    dtype = "float32" if on_cpu else "bfloat16"
    lines = []
    for width in widths:
        for size in sizes:
            cell = Cell(size, width, dtype, "both", "gaussian")
            one, none = _metadata(size, {0: _SEEDED}, device), _metadata(size, {}, device)
            calls = {
                "divided": _divided(chosen, none, companion, _metadata(1, {0: _SEEDED}, device)),
                "whole": lambda x, m=one: companion.sample(x, m),
                "none": lambda x, m=none: chosen.sample(x, m),
            }
            found = measured(cell, calls, device, repeats)
            lines.append([f"{size} x {width} {dtype}", *(time_and_ratio(found, name)[0] for name in calls)])
    titles = [
        "batch",
        "the seeded row alone",
        f"the whole batch to {companion.name}",
        f"no seeded row, all {chosen.name}",
    ]
    return markdown_table(titles, lines, in_words=titles[:1])


def _load(name: str, device: torch.device) -> Sampler:
    return tokendraw.load_sampler(name, device=device, logprobs_mode=_MODE)


def _pair(chosen: str, companion: str, device: torch.device) -> Sampler:
    """Load the chosen sampler with that companion."""
    before = os.environ.get("TOKENDRAW_PRIORITY")
    os.environ["TOKENDRAW_PRIORITY"] = companion
    try:
        sampler = _load(chosen, device)
    finally:
        del os.environ["TOKENDRAW_PRIORITY"]
        if before is not None:
            os.environ["TOKENDRAW_PRIORITY"] = before
    found = sampler.resolution.companion
    if found not in (companion, None):
        raise click.ClickException(f"the companion needs to be {companion!r}, found {found!r}.")
    return sampler


def _divided(
    chosen: Sampler, plain: SamplingMetadata, companion: Sampler, seeded: SamplingMetadata
) -> Callable[[Tensor], SamplerOutput]:
    """Draw row 0 by the companion and the batch by the chosen sampler, as a batch that is divided is drawn."""
    first = torch.zeros(1, dtype=torch.int64, device=chosen.device)

    def draw(logits: Tensor) -> SamplerOutput:
        apart = companion.sample(logits.index_select(0, first), seeded)
        whole = chosen.sample(logits, plain)
        return SamplerOutput(
            whole.token_ids.index_copy(0, first, apart.token_ids),
            whole.valid.index_copy(0, first, apart.valid),
        )

    return draw


def _metadata(rows: int, special: Mapping[int, SamplingParams], device: torch.device) -> SamplingMetadata:
    params = [special.get(row, _BOTH) for row in range(rows)]
    return SamplingMetadata.from_params(params, device=device, positions=range(rows))


if __name__ == "__main__":
    main()
