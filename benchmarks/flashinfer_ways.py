"""Times each way of the flashinfer plugin, from which the order of its table comes; prints Markdown.

    python benchmarks/flashinfer_ways.py

First what comes before every way, clean probabilities: by torch and FlashInfer's softmax, and by the plugin's own
Triton kernel. Then every way that the installed FlashInfer has, the whole call: ways that keep k of tied tokens, too.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch
from tables import head, measured, time_and_ratio

from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw.probabilities import relative
from tokendraw_bench import MIN_P, TEMPERATURE, TOP_K, TOP_P, Cell, markdown_table

if TYPE_CHECKING:
    from tokendraw_flashinfer.kernel_sequences import KernelSequence, Kind
    from tokendraw_flashinfer.sampler import FlashInferSampler

_NEED = Need(tie_rule="either")
_BOTH = SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P)
_JOINT = replace(_BOTH, filter_order="joint")
_REQUESTS: dict[Kind, tuple[SamplingParams, ...]] = {
    "none": (SamplingParams(temperature=TEMPERATURE),),
    "min_p": (SamplingParams(temperature=TEMPERATURE, min_p=MIN_P),),
    "top_k": (SamplingParams(temperature=TEMPERATURE, top_k=TOP_K),),
    "top_p": (SamplingParams(temperature=TEMPERATURE, top_p=TOP_P),),
    "top_k_first": (_BOTH,),
    "joint": (_JOINT,),
    "both orders": (_BOTH, _JOINT),
}
_SHAPES = ((1, 128_256), (64, 128_256), (256, 151_936), (1024, 151_936))


@click.command()
@click.option(
    "--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Samples of a median."
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
def main(repeats: int, output: Path | None) -> None:
    """Time every way of every kind of batch on the CUDA device."""
    if not torch.cuda.is_available():
        raise click.ClickException("the benchmark needs a CUDA device, found none.")
    try:
        import flashinfer.sampling

        from tokendraw_flashinfer.softmax import softmax
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the benchmark needs the plugin flashinfer, found {error}. Run `pip install "
            "'./plugins/flashinfer[flashinfer]'`."
        ) from error
    device = torch.device("cuda", torch.cuda.current_device())
    ways = list(_each_way(device))
    cells = [
        Cell(*shape, dtype, "both", "gaussian") for shape in _SHAPES for dtype in ("float32", "bfloat16")
    ]
    names = [f"{cell.batch} x {cell.vocab_size} {cell.dtype}" for cell in cells]
    columns: list[dict[str, str]] = []
    for cell in cells:
        t = torch.full((cell.batch,), TEMPERATURE, device=device)
        calls = {
            "probabilities by torch and FlashInfer": lambda x, t=t: flashinfer.sampling.softmax(
                relative(x)[0], temperature=t
            ),
            "probabilities by Triton": lambda x, t=t: softmax(x, t),
        }
        for kind, way, sampler in ways:
            rows = [_REQUESTS[kind][row % len(_REQUESTS[kind])] for row in range(cell.batch)]
            if len(_REQUESTS[kind]) <= cell.batch:
                metadata = SamplingMetadata.from_params(rows, device=device)
                calls[f"{kind}: {way.name}"] = lambda x, s=sampler, m=metadata: s.sample(x, m)
        found = measured(cell, calls, device, repeats)
        columns.append({name: " · ".join(time_and_ratio(found, name)) for name in calls})
    rows = list(dict.fromkeys(name for column in columns for name in column))
    said = (
        f"T = {TEMPERATURE}, k = {TOP_K}, p = {TOP_P}, min-p = {MIN_P}, one value a row; microseconds (until the call "
        f"returns) · ratio to a read of the logits; medians of {repeats} in turns."
    )
    command = shlex.join(["python", "benchmarks/flashinfer_ways.py", *sys.argv[1:]])
    lines = [[name, *(column.get(name, "") for column in columns)] for name in rows]
    table = markdown_table(["", *names], lines, in_words=[""])
    text = "\n\n".join([f"`{command}`", head(device, ("flashinfer", "native")), said, table]) + "\n"
    click.echo(text)
    if output is not None:
        output.write_text(text, encoding="utf-8")


def _each_way(device: torch.device) -> Iterator[tuple[Kind, KernelSequence, FlashInferSampler]]:
    """Yield a sampler for each way of each kind, which draws that kind by that way alone."""
    from tokendraw_flashinfer.kernel_sequences import SEQUENCES, available
    from tokendraw_flashinfer.sampler import FlashInferSampler
    from tokendraw_flashinfer.signatures import EntryPoints

    found = available(SEQUENCES, EntryPoints.installed(), "either", torch.cuda.get_device_capability(device))
    for kind, offered in found.items():
        for way in offered:
            general = next(other for other in offered if other.is_general)
            timed = replace(
                way, graph_safe=True
            )  # else it would not be captured; replays take as long as draws
            yield kind, way, FlashInferSampler(device, _NEED, {**SEQUENCES, kind: (timed, general)})


if __name__ == "__main__":
    main()
