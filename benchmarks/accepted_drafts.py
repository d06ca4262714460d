"""Compare how many drafts the modes of a verification accept, for drafts near to the target and far from it.

``python benchmarks/accepted_drafts.py --output benchmarks/results/accepted_drafts.md``. Logits of the target are
Gaussian with deviation 2; those of the draft model are the same plus Gaussian noise. Rows are independent, drafts drawn
without seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import tokendraw
from tokendraw import Drafts, SamplingMetadata, SamplingParams
from tokendraw_bench import markdown_table

MODES = ("coupled", "rejection", "block")
NOISE = (0.5, 1.0, 2.0)
DRAFTS = (2, 4, 8)
VOCAB_SIZE = 1024
REQUESTS, BATCHES = 500, 8


def accepted(
    sampler: tokendraw.Sampler, noise: float, num_drafts: int, generator: torch.Generator
) -> tuple[dict[str, float], float]:
    """Return the mean number of accepted drafts by mode, and the mean of min(p, q) over the tokens."""
    shares, overlap = dict.fromkeys(MODES, 0.0), 0.0
    for _ in range(BATCHES):
        target = 2 * torch.randn(REQUESTS, num_drafts + 1, VOCAB_SIZE, generator=generator)
        draft = target[:, :-1] + noise * torch.randn(REQUESTS, num_drafts, VOCAB_SIZE, generator=generator)
        draft = draft.flatten(0, 1)
        p, q = target[:, :-1].flatten(0, 1).softmax(-1), draft.softmax(-1)
        overlap += float(torch.minimum(p, q).sum(-1).mean()) / BATCHES
        plain = SamplingMetadata.from_params([SamplingParams()] * len(draft))
        ids = sampler.draft(draft, plain).token_ids
        drafts = Drafts.from_counts(ids, [num_drafts] * REQUESTS, draft_logits=draft)
        requests = SamplingMetadata.from_params([SamplingParams()] * REQUESTS)
        for mode in MODES:
            chains = sampler.verify(target.flatten(0, 1), drafts, requests, mode=mode)
            shares[mode] += float(chains.num_accepted.float().mean()) / BATCHES
    return shares, overlap


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    sampler = tokendraw.load_sampler("native", device="cpu", operations=("sample", "verify"))
    generator, rows = torch.Generator().manual_seed(0), []
    torch.manual_seed(0)
    for noise in NOISE:
        for num_drafts in DRAFTS:
            shares, overlap = accepted(sampler, noise, num_drafts, generator)
            gain = shares["block"] / shares["rejection"] - 1
            means = [f"{shares[mode]:.2f}" for mode in MODES]
            rows.append([f"{noise}", f"{overlap:.2f}", f"{num_drafts}", *means, f"{gain:+.1%}"])
    header = ["noise", "mass in common", "drafts", *MODES, "block beside rejection"]
    lines = [
        "`python benchmarks/accepted_drafts.py --output benchmarks/results/accepted_drafts.md`",
        f"Accepted drafts a step, means of {REQUESTS * BATCHES:,} requests; V = {VOCAB_SIZE:,}, without filters. "
        "The mass in common is the mean of the sum of min(p, q): the share of single drafts that can be accepted.",
        markdown_table(header, rows, ()),
    ]
    text = "\n\n".join(lines) + "\n"
    if output is None:
        print(text)
    else:
        output.write_text(text)


if __name__ == "__main__":
    main()
