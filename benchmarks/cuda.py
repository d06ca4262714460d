"""Counts the seeded draws of the native sampler that differ between a CUDA device and the CPU.

    python benchmarks/cuda.py --output benchmarks/results/h200.md

What it takes there: ``tokendraw bench --sampler native --sampler torch-sort --device cuda``.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
from pathlib import Path

import torch

import tokendraw
from tokendraw import SamplingMetadata, SamplingParams

REQUESTS = (
    SamplingParams(),
    SamplingParams(top_k=50, top_p=0.9),
    SamplingParams(top_p=0.9),
    SamplingParams(min_p=0.05),
    SamplingParams(temperature=1.3, top_k=2000),
)
ROWS = 4000
VOCAB_SIZE = 8192


def num_different(draws: int) -> int:
    """Draw on CPU and GPU, with the filters of ``REQUESTS`` in turn, row after row."""
    generator, differ = torch.Generator().manual_seed(3), 0
    samplers = {device: tokendraw.load_sampler("native", device=device) for device in ("cpu", "cuda")}
    for start in range(0, draws, ROWS):
        logits = 2 * torch.randn(ROWS, VOCAB_SIZE, generator=generator)
        params = [dataclasses.replace(REQUESTS[row % len(REQUESTS)], seed=start + row) for row in range(ROWS)]
        tokens = []
        for device, sampler in samplers.items():
            metadata = SamplingMetadata.from_params(params, device=device, positions=range(ROWS))
            tokens.append(sampler.sample(logits.to(device), metadata).token_ids.cpu())
        differ += int((tokens[0] != tokens[1]).sum())
    return differ


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}",
        f"CPU and CUDA differ in {num_different(options.draws)} of {options.draws} seeded draws over mixed filters "
        f"(V = {VOCAB_SIZE}).",
    ]
    text = "\n\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(f"`python benchmarks/cuda.py --output {options.output}`\n\n{text}")


if __name__ == "__main__":
    main()
