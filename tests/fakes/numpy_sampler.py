"""A correct sampler in float64 numpy, independent of native: sort, filter, inverse of the CDF."""

from dataclasses import replace

import numpy as np
import torch

from selections import loaded
from tokendraw import SamplerOutput
from tokendraw.calls.row_requirements import Rows
from tokendraw.operations.verify.calls import Verify
from tokendraw.plugin import Capabilities, VerifyCapabilities
from tokendraw_native import plugin
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
        self.require(Verify(target_logits, drafts, metadata, mode=mode))
        if drafts.draft_logits is not None:
            name = str(drafts.draft_logits.dtype).removeprefix("torch.")
            assert name in self.own.dtypes, name
        return self.inner.verify(self.kept(target_logits, metadata), drafts, metadata, mode=mode)

    def check(self, logits, metadata):
        """Assert that a batch holds promised features alone."""
        assert str(logits.dtype).removeprefix("torch.") in self.own.dtypes, logits.dtype
        self.require(Rows(metadata.facts, logits.shape[1]))
        for name, how in self.own.filters:
            column = metadata.per_row(name)
            assert how == "per_row" or column is None or len(column.unique()) <= 1, name
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
