"""The native sampler: plain PyTorch on every device that torch has, the reference for other samplers.

The entry point names this module, so it imports nothing heavy. The sampler is in :mod:`tokendraw_native.sampler`, the
filters in :mod:`~tokendraw_native.filters`, the draw in :mod:`~tokendraw_native.draw`, the verification of drafts in
:mod:`~tokendraw_native.verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokendraw
from tokendraw.plugin import (
    DRAFT_KINDS,
    FILTER_ORDERS,
    GUMBEL_DTYPES,
    INPUT_DTYPES,
    LOGPROBS_MODES,
    VERIFY_MODES,
    Capabilities,
    PluginInfo,
    Upstream,
    VerifyCapabilities,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

    from tokendraw_native.sampler import NativeSampler

_SAMPLE = Capabilities(
    device_types=None,
    dtypes=INPUT_DTYPES,
    logprobs_modes=LOGPROBS_MODES,
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
    filter_orders=FILTER_ORDERS,
    tie_rule="value",
    seeding="counter",
    greedy=True,
    gumbel_dtypes=GUMBEL_DTYPES,
    valid_flag=True,
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


class NativePlugin:
    """Describes and builds the native sampler."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the reference: lowest priority, every capability."""
        return PluginInfo(
            name="native",
            api_version=1,
            priority=0,
            operations={"sample": _SAMPLE, "verify": _VERIFY},
            upstream=Upstream("torch", ">=2.6", tested=("2.11.0", "2.13.0")),
            summary="the reference in plain PyTorch: every device, every request",
            verified="CPU (x86-64, torch 2.13.0), NVIDIA H200 (torch 2.11.0)",
        )

    @hookimpl
    def tokendraw_build(self, operation: str, device: torch.device, need: tokendraw.Need) -> NativeSampler:
        """Build the sampler for one device: it serves both operations."""
        from tokendraw_native.sampler import NativeSampler  # imports torch

        return NativeSampler(device, need)


plugin = NativePlugin()
