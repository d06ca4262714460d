"""The native sampler on a CUDA device: agreement with the CPU, and time against plain torch and a read of the logits.

    python benchmarks/cuda.py --output benchmarks/results/h200.md

Times are medians of CUDA graph replays over buffers that together exceed the L2 cache, except the eager column. The
read is one ``amax`` over the same buffers in the same process; ratios are to it.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from cpu import TEMPERATURE, pipeline_for
from torch import Tensor

import tokendraw

CELLS = ((1, 128256), (64, 128256), (256, 151936), (1024, 151936))
FILTERS = {"none": {}, "k = 50, p = 0.9": {"top_k": 50, "top_p": 0.9}, "p = 0.9": {"top_p": 0.9}}
BEYOND_L2 = 200 << 20


def replay_microseconds(
    call: Callable[[Tensor], object], buffers: Sequence[Tensor], replays: int = 15
) -> float:
    """Median time of one call in a CUDA graph that goes over all buffers."""
    call(buffers[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for buffer in buffers:
            call(buffer)
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(buffers))
    return median(times)


def eager_microseconds(call: Callable[[Tensor], object], buffer: Tensor, repeats: int = 20) -> float:
    """Median time of one call from the host's point of view, the device included."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(buffer)
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - start))
    return median(times)


def timings() -> list[str]:
    sampler = tokendraw.load_sampler("native", device="cuda")
    lines = [
        "| batch x vocabulary | filters | read us | native us (x read) | eager us | plain torch us (x read) |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for batch, vocab_size in CELLS:
        count = max(1, min(32, -(-BEYOND_L2 // (batch * vocab_size * 4))))
        buffers = [torch.randn(batch, vocab_size, device="cuda") for _ in range(count)]
        read = replay_microseconds(lambda x: x.amax(-1), buffers)
        for name, filters in FILTERS.items():
            params = [tokendraw.SamplingParams(temperature=TEMPERATURE, **filters)] * batch  # type: ignore[arg-type]
            metadata = tokendraw.SamplingMetadata.from_params(params, device="cuda")
            call = lambda x, m=metadata: sampler.sample(x, m)  # noqa: E731
            native = replay_microseconds(call, buffers[:8])
            plain = replay_microseconds(pipeline_for(filters), buffers[:8])
            eager = eager_microseconds(call, buffers[0])
            lines.append(
                f"| {batch} x {vocab_size} | {name} | {read:.0f} | {native:.0f} ({native / read:.0f}) "
                f"| {eager:.0f} | {plain:.0f} ({plain / read:.0f}) |"
            )
    return lines


def agreement(draws: int = 100_000, vocab_size: int = 8192) -> str:
    """Seeded draws over mixed filters on the CPU and on the device."""
    settings = (
        {},
        {"top_k": 50, "top_p": 0.9},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"temperature": 1.3, "top_k": 2000},
    )
    generator, differ = torch.Generator().manual_seed(3), 0
    samplers = {device: tokendraw.load_sampler("native", device=device) for device in ("cpu", "cuda")}
    for start in range(0, draws, 4000):
        logits = 2 * torch.randn(4000, vocab_size, generator=generator)
        params = [tokendraw.SamplingParams(seed=start + i, **settings[i % 5]) for i in range(4000)]  # type: ignore[arg-type]
        tokens = []
        for device, sampler in samplers.items():
            metadata = tokendraw.SamplingMetadata.from_params(params, device=device, positions=range(4000))
            tokens.append(sampler.sample(logits.to(device), metadata).token_ids.cpu())
        differ += int((tokens[0] != tokens[1]).sum())
    return f"CPU and CUDA differ in {differ} of {draws} seeded draws over mixed filters (V = {vocab_size})."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    head = f"{torch.cuda.get_device_name()}, {versions}; gaussian logits, float32, T = {TEMPERATURE}"
    text = "\n".join([head, "", *timings(), "", agreement(), ""])
    print(text)
    if options.output:
        options.output.write_text(f"`python benchmarks/cuda.py --output {options.output}`\n\n{text}")


if __name__ == "__main__":
    main()
