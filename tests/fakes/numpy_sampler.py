"""A correct sampler in float64 numpy, independent of native: sort, filter, inverse of the CDF."""

from dataclasses import replace

import numpy as np
import torch

from calling import loaded
from tokendraw import SamplerOutput
from tokendraw.calls.call import RowGroup
from tokendraw.operations.row_methods import Verify
from tokendraw.plugin import Capabilities, VerifyCapabilities
from tokendraw_native import plugin
from tokendraw_testing import Subject
from tokendraw_testing.reference import EDGE, TILE_SIZE, gumbel

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
    """Yield stretches of rows with equal logits and request."""
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
    """Return the ids of the kept set, and the running sum of weights."""
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
    """Return the sampler as a subject of the kit."""
    return Subject(
        "numpy",
        capabilities={"sample": CAPABILITIES},
        device="cpu",
        build=lambda operation, need: NumpySampler(),
        quick=True,
        seed=seed,
    )


# Native with fewer promises, which asserts them in every call.


NATIVE = plugin.tokendraw_describe().operations
INFINITY = float("inf")


class Modest:
    """Serves an operation like native, within the capabilities."""

    def __init__(self, operation, capabilities, need):
        assert capabilities.gumbel_dtypes == () or need.gumbel_dtype in capabilities.gumbel_dtypes
        self.operation, self.own, self.need = operation, capabilities, need
        self.inner = plugin.tokendraw_build(operation, torch.device("cpu"), need)

    def sample(self, logits, metadata, **draft):
        self.check(logits, metadata)
        return self.inner.sample(self.kept(logits, metadata), metadata, **draft)

    def verify(self, target_logits, drafts, metadata, *, mode="rejection"):
        self.check(target_logits, metadata)
        self.require(Verify(target_logits, drafts, metadata, mode))
        if drafts.draft_logits is not None:
            name = str(drafts.draft_logits.dtype).removeprefix("torch.")
            assert name in self.own.dtypes, name
        return self.inner.verify(self.kept(target_logits, metadata), drafts, metadata, mode=mode)

    def check(self, logits, metadata):
        """Assert that a batch holds promised features alone."""
        assert str(logits.dtype).removeprefix("torch.") in self.own.dtypes, logits.dtype
        self.require(RowGroup(metadata.facts, logits.shape[1]))
        for name, how in self.own.filters:
            column = None if how == "per_row" else metadata.per_row(name)
            assert column is None or len(column.unique()) <= 1, name
        if metadata.facts.max_logprobs is not None:
            assert self.need.logprobs_mode in self.own.logprobs_modes, self.need.logprobs_mode

    def require(self, call):
        """Assert that the capabilities cover a call, whose filters may differ by row."""
        filters = tuple((name, "per_row") for name, _ in self.own.filters)
        capabilities = replace(self.own, filters=filters)
        backend = loaded("modest", None, capabilities, operation=self.operation, need=self.need)
        reason = backend.reason_against(call)
        assert reason is None, reason

    def kept(self, logits, metadata):
        """Drop logits behind the k-th, the later of equals, under the tie rule ``exact_k``."""
        k = metadata.per_row("top_k")
        if self.own.tie_rule == "value" or k is None:
            return logits
        order = (
            logits.nan_to_num(-INFINITY, INFINITY, -INFINITY)
            .sort(dim=-1, descending=True, stable=True)
            .indices
        )
        place = order.argsort(-1)
        dropped = (place >= k.unsqueeze(-1)) & (k.unsqueeze(-1) > 0) & ~logits.isnan()
        return logits.masked_fill(dropped, -INFINITY)


def modest(effort, seed=0, verify=None, **promises):
    """Return the sampler and verifier as a subject of the kit.

    :param verify: fields of its capabilities beside those of the sampler; None: it verifies nothing.
    :param promises: fields of the capabilities that differ from native's.
    """
    capabilities = {"sample": replace(NATIVE["sample"], **promises)}
    if verify is not None:
        given = {name: getattr(NATIVE["verify"], name) for name in ("verify_modes", "draft_kinds")}
        capabilities["verify"] = VerifyCapabilities.of(capabilities["sample"], **given | verify)
    return Subject(
        "modest",
        capabilities=capabilities,
        device="cpu",
        build=lambda operation, need: Modest(operation, capabilities[operation], need),
        effort=effort,
        seed=seed,
    )


# A sampling step by sets of values, as in the contract: slow, and without sorting.


def prepared(logits, params):
    """Return (x, y, kept, certain) of a random row."""
    x = np.where(np.isnan(logits), -np.inf, np.asarray(logits, np.float64))
    if np.isinf(x.max()):
        y = np.where(x == np.inf, 0.0, -np.inf)
    else:
        with np.errstate(over="ignore"):
            y = (x - x.max()) / params.temperature
    thresholds, certain = [], True
    if params.min_p > 0:
        thresholds.append(min(float(np.log(params.min_p)), 0.0))
        certain = not near(y, thresholds[0]).any()
    if 0 < params.top_k < len(y):
        at_least = {value: (y >= value).sum() for value in set(y.tolist())}
        thresholds.append(max(value for value, count in at_least.items() if count >= params.top_k))
    kept = y >= max(thresholds, default=-np.inf)
    if params.top_p < 1:
        counted = y if params.filter_order == "joint" else y[kept]
        values = sorted(set(counted.tolist()))
        above = {value: np.exp(counted[counted > value]).sum() / np.exp(counted).sum() for value in values}
        inside = [value for value in values if above[value] < params.top_p or value == values[-1]]
        contested = [value for value in values[:-1] if abs(above[value] - params.top_p) <= EDGE]
        thresholds.append(inside[0])
        kept, certain = kept & (y >= inside[0]), certain and not contested
    for threshold in thresholds:
        certain = certain and not (near(y, threshold) & (y < threshold)).any()
    merged = len(set(x[np.isfinite(y)].tolist())) != len(set(y[np.isfinite(y)].tolist()))
    return x, y, kept & (y > -np.inf), certain and not merged


def near(y, threshold):
    """Return a mask of the tokens next to a threshold, without tokens equal to the threshold."""
    if threshold == -np.inf:
        return np.zeros(y.shape, bool)
    return (y != threshold) & (np.abs(y - threshold) <= EDGE * max(1.0, abs(threshold)))


def drawn(y, kept, seed, position, streams, dtype):
    """The token, and the distance of the runner-up."""
    ids = np.flatnonzero(kept)
    masses = {tile: np.exp(y[ids[ids // TILE_SIZE == tile]]).sum() for tile in sorted(set(ids // TILE_SIZE))}
    with np.errstate(divide="ignore"):
        scores = np.log(list(masses.values())) + gumbel(seed, position, list(masses), streams[1], dtype)
    ids = ids[ids // TILE_SIZE == list(masses)[scores.argmax()]]
    keys = y[ids] + gumbel(seed, position, ids, streams[0], dtype)
    return ids[keys.argmax()], min(
        np.diff(np.sort(s)[-2:])[0] if len(s) > 1 else np.inf for s in (scores, keys)
    )
