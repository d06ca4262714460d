"""The false-alarm rate of statistics of drawn tokens, and rows for tests.

The draws of the suite are seeded, so a check that passes once passes always. ``FALSE_ALARM`` is the probability that a
correct sampler with other random numbers (another generator of torch, another seed in the test) is called wrong.
"""

import numpy as np
import torch

from tokendraw_native import sampler, verify
from tokendraw_native.rows import Noise
from tokendraw_testing.logits_families import gaussian
from tokendraw_testing.reference import SAMPLE as SAMPLE

FALSE_ALARM = 1e-7


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
