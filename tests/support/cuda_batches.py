"""Batches of every kind on a CUDA device, for the tests that ask how a call behaves there."""

import functools

import numpy as np
import torch

import tokendraw
from tokendraw import BatchFacts, SamplingMetadata, SamplingParams
from tokendraw_testing.logits_families import FAMILIES

B, V = 64, 32_000


def cycle(*params):
    return [params[i % len(params)] for i in range(B)]


FILTERED = [
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    SamplingParams(top_p=0.95, min_p=0.01),
    SamplingParams(top_k=20, top_p=0.9, filter_order="joint"),
    SamplingParams(temperature=1.5, min_p=0.05),
    SamplingParams(),
    SamplingParams(temperature=0.0),
]
BATCHES = {
    "plain": cycle(SamplingParams()),
    "seeded": cycle(SamplingParams(seed=3), SamplingParams(seed=2**64 - 1)),
    "top_k": cycle(SamplingParams(top_k=50)),
    "large top_k": cycle(SamplingParams(top_k=V // 2)),
    "top_p": cycle(SamplingParams(top_p=0.9)),
    "top_k and top_p": cycle(SamplingParams(top_k=50, top_p=0.9, seed=4)),
    "min_p": cycle(SamplingParams(min_p=0.02)),
    "joint": cycle(SamplingParams(top_k=50, top_p=0.9, filter_order="joint")),
    "mixed filters": cycle(*FILTERED),
    "greedy": cycle(SamplingParams(temperature=0.0)),
    "five logprobs": cycle(
        SamplingParams(logprobs=5, top_k=50), SamplingParams(logprobs=2), SamplingParams()
    ),
    "all logprobs": cycle(
        SamplingParams(logprobs=-1, top_p=0.9), SamplingParams(temperature=0.0, logprobs=1)
    ),
}
UNKNOWN = "ready tensors without facts"
KINDS = [*BATCHES, UNKNOWN, "rows of shared slots"]


@functools.cache
def load(mode="raw_logprobs", gumbel_dtype="fp32"):
    need = tokendraw.Need(gumbel_dtype=gumbel_dtype)
    return tokendraw.load_sampler("native", device="cuda", logprobs_mode=mode, need=need)


def logits_of(seed, rows=B, size=V, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    families = list(FAMILIES.values())
    values = np.stack([families[i % len(families)](rng, size) for i in range(rows)])
    return torch.from_numpy(values).to("cuda", dtype)


def metadata_of(kind, position=0):
    if kind == "rows of shared slots":
        index = torch.arange(B, device="cuda") // 8
        positions = torch.arange(position, position + B, device="cuda")
        params = [*FILTERED, SamplingParams(seed=8), SamplingParams(seed=9, top_p=0.8)]
        return SamplingMetadata.from_params(params, device="cuda", positions=positions, row_index=index)
    positions = torch.arange(position, position + B, device="cuda")
    if kind != UNKNOWN:
        return SamplingMetadata.from_params(BATCHES[kind], device="cuda", positions=positions)
    rows = cycle(*FILTERED)
    return SamplingMetadata(
        temperature=torch.tensor([p.temperature for p in rows], device="cuda"),
        top_k=torch.tensor([p.top_k for p in rows], device="cuda", dtype=torch.int32),
        top_p=torch.tensor([p.top_p for p in rows], device="cuda"),
        min_p=torch.tensor([p.min_p for p in rows], device="cuda"),
        seed=torch.arange(B, device="cuda"),
        seeded=torch.arange(B, device="cuda") % 2 == 0,
        positions=positions,
        joint=torch.tensor([p.filter_order == "joint" for p in rows], device="cuda"),
        logprobs=torch.full((B,), 3, device="cuda"),
        facts=BatchFacts(max_logprobs=5),
    )
