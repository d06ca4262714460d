"""The native sampler with fewer promises, which asserts in every call that nothing beyond them is asked of it."""

from dataclasses import replace

import torch

from selections import loaded
from tokendraw.calls.row_requirements import RowGroup
from tokendraw.operations.verify.calls import Verify
from tokendraw.plugin import VerifyCapabilities
from tokendraw_native import plugin
from tokendraw_testing import Subject

NATIVE = plugin.tokendraw_describe().operations
INF = float("inf")


class Modest:
    """Serves one operation as native does, within its capabilities."""

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
        """Assert that a batch holds nothing that is not promised."""
        assert str(logits.dtype).removeprefix("torch.") in self.own.dtypes, logits.dtype
        self.require(RowGroup(metadata.facts, logits.shape[1]))
        for name, how in self.own.filters:
            column = metadata.per_row(name)
            assert how == "per_row" or column is None or len(column.unique()) <= 1, name
        if metadata.facts.max_logprobs is not None:
            assert self.need.logprobs_mode in self.own.logprobs_modes, self.need.logprobs_mode

    def require(self, call):
        """Assert that all of a call is promised, filters for single rows aside."""
        per_row = tuple((name, "per_row") for name, _ in self.own.filters)
        capabilities = replace(self.own, filters=per_row)
        reason = loaded(
            "modest", None, capabilities, operation=self.operation, need=self.need
        ).reason_against(call)
        assert reason is None, reason

    def kept(self, logits, metadata):
        """The logits with those behind the k-th taken out, the first of equals kept, where exactly k are promised."""
        k = metadata.per_row("top_k")
        if self.own.tie_rule == "value" or k is None:
            return logits
        order = logits.nan_to_num(-INF, INF, -INF).sort(dim=-1, descending=True, stable=True).indices
        place = order.argsort(-1)
        dropped = (place >= k.unsqueeze(-1)) & (k.unsqueeze(-1) > 0) & ~logits.isnan()
        return logits.masked_fill(dropped, -INF)


def modest(effort, seed=0, verify=None, **promises):
    """The sampler as the kit takes it, and the verifier.

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
