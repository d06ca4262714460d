"""Time filters from moments beside min-p in their place, with the same floor.

``python benchmarks/filters.py --output benchmarks/results/h100_filters.md``. Medians of CUDA graphs over buffers that a
cache does not hold, Gaussian logits at T = 1; a read of the same buffers in turn. Min-p is the one whose floor is that
of the filter in the median row.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch

import tokendraw
from tokendraw import Need, SamplingMetadata, SamplingParams
from tokendraw_bench import Cell, TimedCall, Timing, make_inputs, markdown_table, measure, timer_for

FILTERS = {
    "top_n_sigma = 1": {"top_n_sigma": 1.0},
    "top_n_sigma = 2": {"top_n_sigma": 2.0},
    "epsilon_cutoff = 3e-4": {"epsilon_cutoff": 3e-4},
    "eta_cutoff = 2e-3": {"eta_cutoff": 2e-3},
    "p_less": {"p_less": 1.0},
    "all four": {"top_n_sigma": 2.0, "epsilon_cutoff": 1e-5, "eta_cutoff": 1e-4, "p_less": 1.0},
}
BASES = {"none": {}, "p = 0.9": {"top_p": 0.9}, "k = 50, p = 0.9": {"top_k": 50, "top_p": 0.9}}
TITLES = ("min-p", "filter")


def calls_of(
    name: str, device: torch.device, logits: torch.Tensor, base: dict[str, float], filters: dict[str, float]
) -> dict[str, TimedCall]:
    """Return the draw with min-p, and that with the filters, by the title of their column."""
    rows = len(logits)
    bounded = tokendraw.load_sampler(name, device=device, need=Need(threshold=True))
    metadata = _metadata(device, rows, {"filters": filters})
    threshold = bounded.sample(logits, metadata).threshold
    assert threshold is not None
    min_p = (threshold - logits.float().amax(-1)).exp().median().item()
    sampler = tokendraw.load_sampler(name, device=device)
    return {
        title: TimedCall(draw=partial(_sample, sampler, _metadata(device, rows, base | fields)))
        for title, fields in zip(TITLES, ({"min_p": min_p}, {"filters": filters}), strict=True)
    }


def _metadata(device: torch.device, rows: int, fields: dict[str, object]) -> SamplingMetadata:
    params = [SamplingParams(**fields, seed=i) for i in range(rows)]
    return SamplingMetadata.from_params(params, device=device, positions=range(rows))


def _sample(sampler: tokendraw.Sampler, metadata: SamplingMetadata, logits: torch.Tensor) -> object:
    return sampler.sample(logits, metadata)


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampler", default="triton-gumbel")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 64, 1])
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device, lines = torch.device(arguments.device), []
    for rows in arguments.rows:
        for dtype in ("float32", "bfloat16"):
            cell = Cell(rows, arguments.vocab_size, dtype, "none", "gaussian")
            timer = timer_for(device, 15)
            buffers = make_inputs(cell, device, timer.buffers(cell.nbytes))
            for base_name, base in BASES.items():
                for name, filters in FILTERS.items():
                    calls = calls_of(arguments.sampler, device, buffers[0], base, filters)
                    measured = measure(calls, buffers, timer)
                    min_p, filtered = (
                        entry.us if isinstance(entry := measured.calls[title], Timing) else float("nan")
                        for title in TITLES
                    )
                    times = [f"{us:.1f}" for us in (measured.read.us, min_p, filtered)]
                    lines.append([str(rows), dtype, base_name, name, *times, f"{filtered / min_p:.2f}"])
                    print(*lines[-1], flush=True)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    parts = [
        "`python benchmarks/filters.py --output benchmarks/results/h100_filters.md`",
        f"Microseconds a call of {arguments.sampler} on {card}, V = {arguments.vocab_size:,}.",
        markdown_table(
            ["rows", "dtype", "beside", "filter", "read", "min-p", "filter", "filter / min-p"], lines, ()
        ),
    ]
    text = "\n\n".join(parts) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
