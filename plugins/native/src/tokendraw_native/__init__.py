"""The native sampler: plain PyTorch on every device that torch has, the reference that other samplers are held to.

This module is what the entry point names, so it imports nothing heavy; the sampler is in
:mod:`tokendraw_native.sampler`, the filters in :mod:`~tokendraw_native.filters`, the draw in
:mod:`~tokendraw_native.draw`, the verification of drafts in :mod:`~tokendraw_native.verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokendraw
from tokendraw.plugin import Capabilities, PluginInfo, Upstream, VerifyCapabilities, hookimpl

if TYPE_CHECKING:
    import torch

    from tokendraw_native.sampler import NativeSampler

_CAPABILITIES = Capabilities(
    device_types=None,
    dtypes=("float32", "bfloat16", "float16"),
    logprobs_modes=(
        "raw_logprobs",
        "raw_logits",
        "processed_logprobs",
        "processed_logits",
        "temperature_logprobs",
    ),
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
    filter_orders=("top_k_first", "joint"),
    tie_rule="value",
    seeding="counter",
    greedy=True,
    gumbel_dtypes=("fp32", "fp64"),
    valid_flag=True,
    graph_safe=True,
    sync_free=True,
    batch_invariant=True,
)
_VERIFY = VerifyCapabilities.of(
    _CAPABILITIES,
    verify_modes=("rejection", "coupled"),
    draft_kinds=("probs", "logits", "chosen"),
    ragged_drafts=True,
    placeholder_drafts=True,
    sync_free=False,  # of its thousand launches the last may have to wait until a busy GPU takes them
)


class NativePlugin:
    """Describes and builds the native sampler."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """The reference: lowest priority, every capability."""
        return PluginInfo(
            name="native",
            api_version=1,
            priority=0,
            operations={"sample": _CAPABILITIES, "verify": _VERIFY},
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
