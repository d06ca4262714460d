"""Statistical checks of drawn tokens. Every one gives a p-value, to be compared with ``FALSE_ALARM``.

The draws of the suite are seeded, so a check that passes once passes always. ``FALSE_ALARM`` is the probability that a
correct sampler with other random numbers (another generator of torch, another seed in the test) is called wrong.
"""

import numpy as np
import torch
from scipy import stats

from tokendraw_native import sampler, verify
from tokendraw_native.noise import Noise
from tokendraw_testing.cases.drafts import SAMPLE as SAMPLE
from tokendraw_testing.logits_families import gaussian

FALSE_ALARM = 1e-7


def chi_square(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the p-value of ``tokens`` as draws from ``probabilities``, with cells below five expected draws pooled.

    A drawn token of probability 0 gives 0.
    """
    counts = np.bincount(tokens, minlength=len(probabilities))
    if (counts[probabilities == 0] > 0).any():
        return 0.0
    expected = len(tokens) * probabilities / probabilities.sum()
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    return float(stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue)


def filtered_probabilities(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """Return the probabilities of a filtered row [V] by the definition: min-p, top-k, then top-p of the rest."""
    probabilities = (logits.cpu().double() / temperature).softmax(0)
    probabilities[probabilities < min_p * probabilities.max()] = 0.0
    order = probabilities.argsort(descending=True)
    chosen = probabilities[order][:top_k] / probabilities[order][:top_k].sum()
    chosen = chosen[: int((chosen.cumsum(0) < top_p).sum()) + 1]
    row = torch.zeros_like(probabilities)
    row[order[: len(chosen)]] = chosen / chosen.sum()
    return row.numpy()


# Special rows, and requests of every kind.


NAN, INF = float("nan"), float("inf")
V = 1500


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


# Native with float32 noise in some streams.


def drop_float64(monkeypatch, *streams):
    """Make native draw the noise of some streams in float32."""

    class Mixed(Noise):
        def gumbel(self, index, stream, dtype):
            asked, dropped = (Noise.gumbel(self, index, stream, each) for each in (dtype, "fp32"))
            is_dropped = torch.isin(torch.as_tensor(stream), torch.tensor(streams))
            return torch.where(is_dropped, dropped.to(asked.dtype), asked)

        def uniform(self, stream, dtype):
            return Noise.uniform(self, stream, "fp32" if stream in streams else dtype)

    for module in (sampler, verify):
        monkeypatch.setattr(module, "Noise", Mixed)
