"""Rows that hold NaN, infinities and extremes, and one request of every kind to sample them with."""

import numpy as np
import torch

from tokendraw import SamplingParams
from tokendraw_testing.logits_families import gaussian

NAN, INF = float("nan"), float("inf")
V = 1500
MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits", "temperature_logprobs"]
KINDS = {
    "greedy": SamplingParams(temperature=0.0, logprobs=3),
    "plain": SamplingParams(seed=3, logprobs=3),
    "top_k": SamplingParams(seed=3, top_k=20, logprobs=3),
    "top_p": SamplingParams(seed=3, top_p=0.9, logprobs=3),
    "min_p": SamplingParams(seed=3, min_p=0.05, logprobs=3),
    "all": SamplingParams(seed=3, temperature=0.7, top_k=50, top_p=0.9, min_p=0.01, logprobs=3),
    "joint": SamplingParams(seed=3, top_k=50, top_p=0.9, filter_order="joint", logprobs=3),
    "unseeded": SamplingParams(top_k=50, top_p=0.9, logprobs=3),
}


def gaussians(rows, seed=0, size=V):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([gaussian(rng, size) for _ in range(rows)]))


def with_values(values, size=V):
    """A gaussian row with ``values`` (id to logit) put in."""
    row = gaussians(1, seed=7, size=size)[0]
    for token, value in values.items():
        row[token] = value
    return row


POISON = {
    "one NaN": with_values({3: NAN}),
    "NaN at the ends": with_values({0: NAN, V - 1: NAN}),
    "all NaN": torch.full((V,), NAN),
    "all -inf": torch.full((V,), -INF),
    "NaN and -inf": torch.full((V,), -INF).index_fill_(0, torch.arange(0, V, 2), NAN),
    "one +inf": with_values({1100: INF}),
    "all +inf": torch.full((V,), INF),
    "+inf, -inf and NaN": with_values({2: INF, 900: INF, 5: NAN, 6: -INF}),
    "extremes": with_values({2: 3.3e38, 900: -3.3e38}),
    "all the least float32": torch.full((V,), torch.finfo(torch.float32).min),
    "all the largest float32": torch.full((V,), torch.finfo(torch.float32).max),
    "subnormal": torch.full((V,), 1e-45),
}
