"""A correct sampler in float64 numpy that shares nothing with the native one: sort, filter, inverse of the CDF."""

import numpy as np
import torch

from tokendraw import SamplerOutput
from tokendraw.plugin import Capabilities
from tokendraw_testing import Subject

CAPABILITIES = Capabilities(
    dtypes=("float32", "bfloat16", "float16"),
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
    filter_orders=("top_k_first", "joint"),
    seeding="launch",
    greedy=True,
    valid_flag=True,
)


class NumpySampler:
    def sample(self, logits, metadata):
        batch = len(logits)
        rng = np.random.default_rng(int(torch.randint(2**62, (1,))))
        columns = [
            np.full(batch, default) if tensor is None else tensor.numpy()
            for name, default in (
                ("temperature", 1.0),
                ("top_k", 0),
                ("top_p", 1.0),
                ("min_p", 0.0),
                ("joint", False),
            )
            for tensor in [metadata.per_row(name)]
        ]
        tokens, valid = np.zeros(batch, np.int64), np.ones(batch, bool)
        for start, end in _runs(logits, columns):
            x = logits[start].float().numpy().astype(np.float64)
            order, cdf = kept(x, *(column[start] for column in columns))
            place = np.searchsorted(cdf, rng.random(end - start) * cdf[-1], side="right")
            tokens[start:end] = order[np.minimum(place, len(order) - 1)]
            valid[start:end] = not np.isnan(x).any() and x.max() > -np.inf
        return SamplerOutput(torch.from_numpy(tokens), torch.from_numpy(valid))


def _runs(logits, columns):
    """Stretches of rows that are alike in logits and request."""
    batch = len(logits)
    if not batch:
        return
    new = np.ones(batch, bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    if logits.stride(0):
        new[1:] |= (logits[1:] != logits[:-1]).any(1).numpy()
    starts = np.flatnonzero(new)
    yield from zip(starts, [*starts[1:], batch], strict=True)


def kept(x, temperature, top_k, top_p, min_p, joint):
    """Ids of the kept tokens, and the running sum of their weights."""
    x = np.where(np.isnan(x), -np.inf, x)
    top = x.max()
    if not temperature > 0 or top == -np.inf:
        return np.array([x.argmax() if top > -np.inf else 0]), np.ones(1)
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.where(x == top, 0.0, (x - top) / temperature if np.isfinite(top) else -np.inf)
    order = np.argsort(-x, kind="stable")
    weight, value = np.exp(y[order]), x[order]
    whole = weight.sum()
    stays = y[order] > -np.inf
    if min_p > 0:
        stays &= y[order] >= np.log(min_p)
    if 0 < top_k < len(x):
        stays &= value >= value[top_k - 1]
    if top_p < 1:
        counted = weight * (1 if joint else stays)
        above = np.cumsum(counted) - counted
        last = np.flatnonzero(stays & (above < top_p * (whole if joint else counted.sum())))
        stays &= value >= value[last[-1] if len(last) else 0]
    return order[stays], np.cumsum(weight[stays])


def subject(seed=0):
    """The sampler as the kit takes it."""
    return Subject(
        "numpy",
        capabilities={"sample": CAPABILITIES},
        device="cpu",
        build=lambda operation, need: NumpySampler(),
        quick=True,
        seed=seed,
    )
