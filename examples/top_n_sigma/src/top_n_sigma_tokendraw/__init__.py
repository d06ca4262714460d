"""The plugin `top-n-sigma`: a plain sampler with an additional filter, for :class:`~.metadata.TopNSigmaMetadata`.

The entry point names this module, and `tokendraw list` imports it: nothing heavy may be imported at its top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokendraw
from tokendraw.plugin import LOGPROBS_MODES, Capabilities, PluginInfo, hookimpl

if TYPE_CHECKING:
    import torch

    from top_n_sigma_tokendraw.sampler import TopNSigmaSampler

_SAMPLE = Capabilities(
    device_types=("cpu", "cuda"),
    dtypes=("float32", "bfloat16", "float16"),
    logprobs_modes=LOGPROBS_MODES,
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
    filter_orders=("top_k_first", "joint"),
    tie_rule="value",
    seeding="counter",
    greedy=True,
    gumbel_dtypes=("fp32", "fp64"),
    valid_flag=True,
    batch_invariant=True,
    metadata_classes=("top_n_sigma_tokendraw.metadata.TopNSigmaMetadata",),
    # No report says that these two hold on CUDA, and the filter itself has not been captured in a graph.
    graph_safe=False,
    sync_free=False,
)


class TopNSigmaPlugin:
    """Describes and builds the sampler."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the plugin with data only, the same on every machine."""
        return PluginInfo(
            name="top-n-sigma",
            api_version=1,
            # Below native, which is 0. Who wants the filter chooses this sampler by name; for everybody else it is a
            # slower native, and installing it must not move their default choice.
            priority=-10,
            operations={"sample": _SAMPLE},
            summary="plain PyTorch, with the top-n-sigma filter for each row",
            verified="CPU (x86-64, torch 2.13.0)",
        )

    @hookimpl
    def tokendraw_build(self, operation: str, device: torch.device, need: tokendraw.Need) -> TopNSigmaSampler:
        """Build the sampler for a device. Plain PyTorch lacks nothing on any machine, so there is no probe."""
        from top_n_sigma_tokendraw.sampler import TopNSigmaSampler  # imports torch

        return TopNSigmaSampler(device, need)


plugin = TopNSigmaPlugin()
