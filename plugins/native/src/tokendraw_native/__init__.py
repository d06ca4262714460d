"""The native sampler: the reference for other samplers, in plain PyTorch, on every device of torch.

The entry point names this module, so it imports nothing heavy. The sampler is in :mod:`tokendraw_native.sampler`, the
filters in :mod:`~tokendraw_native.filters`, the draw in :mod:`~tokendraw_native.draw`, scores in
:mod:`~tokendraw_native.logprobs`, the verification of drafts in :mod:`~tokendraw_native.verify`, the processor of
logits in :mod:`~tokendraw_native.logits_processing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokendraw
from tokendraw.plugin import (
    DRAFT_KINDS,
    EDITS,
    FILTER_ORDERS,
    FILTERS,
    GUMBEL_DTYPES,
    INPUT_DTYPES,
    LOGPROBS_MODES,
    MOMENTS,
    VERIFY_MODES,
    Capabilities,
    PluginInfo,
    ProcessCapabilities,
    Release,
    Upstream,
    VerifyCapabilities,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

    from tokendraw_native.logits_processing import NativeProcessor
    from tokendraw_native.sampler import NativeSampler


UPSTREAM = Upstream(
    "torch",
    ">=2.6",
    tested=(">=2.6,<2.14",),
    releases=(Release("0", "was never run", refused=True), Release("2.6", "has all that is called")),
)

_SAMPLE = Capabilities(
    device_types=None,
    dtypes=INPUT_DTYPES,
    logprobs_modes=LOGPROBS_MODES,
    logprob_token_ids=True,
    filters=tuple((name, "per_row") for name in FILTERS),
    row_moments=MOMENTS,
    filter_orders=FILTER_ORDERS,
    tie_rule="value",
    seeding="counter",
    greedy=True,
    gumbel_dtypes=GUMBEL_DTYPES,
    valid_flag=True,
    threshold=True,
    graph_safe=True,
    sync_free=True,
    batch_invariant=True,
)
_VERIFY = VerifyCapabilities.of(
    _SAMPLE,
    verify_modes=VERIFY_MODES,
    draft_kinds=DRAFT_KINDS,
    ragged_drafts=True,
    placeholder_drafts=True,
    sync_free=False,  # it makes about a thousand launches, and the last ones may wait for room in a full launch queue
)
_PROCESS = ProcessCapabilities(
    device_types=None, dtypes=INPUT_DTYPES, drafts=True, edits=EDITS, graph_safe=True, sync_free=True
)


class NativePlugin:
    """Describes and builds the native sampler and processor."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the reference: lowest priority, every capability."""
        return PluginInfo(
            name="native",
            api_version=1,
            priority=0,
            operations={"sample": _SAMPLE, "verify": _VERIFY, "score": _SAMPLE, "process_logits": _PROCESS},
            upstream=UPSTREAM,
            summary="the reference in plain PyTorch: every device, every request",
            verified="CPU (x86-64, torch 2.13.0), NVIDIA H200 (torch 2.11.0); not run on an AMD GPU",
        )

    @hookimpl
    def tokendraw_build(
        self, operation: str, device: torch.device, need: tokendraw.plugin.HostNeed
    ) -> NativeSampler | NativeProcessor:
        """Build the provider of an operation on a device; the sampler draws, verifies and scores."""
        if operation == "process_logits":
            from tokendraw_native.logits_processing import NativeProcessor

            return NativeProcessor()
        from tokendraw_native.sampler import NativeSampler  # imports torch

        assert isinstance(need, tokendraw.Need)
        return NativeSampler(device, need)


plugin = NativePlugin()
