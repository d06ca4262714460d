"""Counts the seeded rows in which the sampler cpu draws another token than native, over mixed requests and logits.

    python benchmarks/cpu_agree.py --rows 200000 --output benchmarks/results/cpu_agree.md

Rows have vocabularies from 1,000 to 151,936, each dtype, bells of several widths, masked and tied logits; any filters
of the sampler in any order, with temperatures from 0 to 2, float32 noise, a seed and a position of their own.
"""

from __future__ import annotations

import argparse
import platform
import random
from pathlib import Path

import torch

from tokendraw import SamplingMetadata, SamplingParams, load_sampler

BATCH = 64
SIZES = {1000: 8, 5003: 8, 32_000: 3, 128_256: 1, 151_936: 1}
"""Vocabularies with the number of their batches in a round."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VALUES = {
    "temperature": (0.0, 0.3, 0.7, 0.8, 1.0, 1.0, 2.0),
    "top_k": (0, 0, 1, 20, 50, 1000),
    "top_p": (1.0, 1.0, 0.5, 0.9, 0.95, 0.99),
    "min_p": (0.0, 0.0, 0.0, 0.01, 0.05),
    "xtc_probability": (0.0, 0.0, 0.0, 0.0, 0.5),
    "filters": (None, None, None, None, {"top_n_sigma": 1.0}, {"eta_cutoff": 1e-3}),
    "filter_order": ("top_k_first", "joint", "temperature_last"),
}


def logits_of(rows: int, size: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Make rows [rows, size] of several designs."""
    logits = torch.randn(rows, size, generator=generator)
    logits[1::4] *= 4
    logits[2::4] *= 0.1
    logits[3::8] = (4 * logits[3::8]).round() / 4
    logits[7::8].masked_fill_(logits[7::8] < 1, -torch.inf)
    return logits.to(dtype)


def main() -> None:
    """Print the number of rows, and of those that differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    cpu, native = load_sampler("cpu", device="cpu"), load_sampler("native", device="cpu")
    rng, generator = random.Random(1), torch.Generator().manual_seed(1)
    sizes = [size for size, batches in SIZES.items() for _ in range(batches)]
    seen: dict[int, int] = dict.fromkeys(SIZES, 0)
    other = dict(seen)
    while sum(seen.values()) < options.rows:
        for number, size in enumerate(sizes):
            logits = logits_of(BATCH, size, DTYPES[number % 3], generator)
            params = [
                SamplingParams(
                    seed=rng.getrandbits(64), **{name: rng.choice(values) for name, values in VALUES.items()}
                )
                for _ in range(BATCH)
            ]
            positions = [rng.randrange(2**40) for _ in range(BATCH)]
            metadata = SamplingMetadata.from_params(params, positions=positions)
            found, wanted = (sampler.sample(logits, metadata).token_ids for sampler in (cpu, native))
            seen[size] += BATCH
            other[size] += int((found != wanted).sum())
    lines = [
        f"`python benchmarks/cpu_agree.py --rows {options.rows} --output {options.output}`",
        "",
        f"torch {torch.__version__}, {platform.machine()}; mixed seeded requests and logits",
        "",
        "| vocabulary | rows | another token than native's |",
        "|--:|--:|--:|",
        *(f"| {size:,} | {seen[size]:,} | {other[size]} |" for size in SIZES),
        f"| all | {sum(seen.values()):,} | {sum(other.values())} |",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
