"""AMD's aiter as a tokendraw plugin, for ROCm.

The entry point names this module, so it imports nothing heavy. Importing aiter on an architecture that it does not
support can end the process, so the core compares the architectures below before anything is built. The call is in
:mod:`tokendraw_aiter.sampler`.

PyPI's ``aiter`` is a library for asyncio; AMD's distribution is ``amd-aiter``, and its import name is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokendraw
from tokendraw.plugin import Capabilities, PluginInfo, Release, Upstream, hookimpl

if TYPE_CHECKING:
    import torch

    from tokendraw_aiter.sampler import AiterSampler


# The releases, as read from the sources; none has run on hardware. README.md says how its faults are avoided.
UPSTREAM = Upstream(
    "amd-aiter",
    ">=0.1.13",
    releases=(
        Release("0", "draws top-p wrongly (pull request 2035)", "sample", refused=True),
        Release("0.1.11", "has operators that were never looked at", "sample", refused=True),
        Release(
            "0.1.13",
            "reads out of bounds for rows without mass (pull request 3658), so it gets none",
            "sample",
        ),
        Release("0.1.17", "reads within bounds", "sample"),
        Release("0.1.20", "has no sampling kernels on ROCm 10 (pull request 4754)", "sample"),
        Release("0.1.20.post1", "has sampling kernels on ROCm 10 too (pull request 4843)", "sample"),
    ),
)

_SAMPLE = Capabilities(
    device_types=("rocm",),
    # Of those that csrc/cpp_itfs/utils.py lists, the ones that were sold.
    rocm_archs=("gfx90a", "gfx942", "gfx950"),
    dtypes=("float32", "bfloat16", "float16"),
    logprobs_modes=(),
    filters=(("top_k", "per_row"), ("top_p", "per_row")),
    filter_orders=("top_k_first", "joint"),
    tie_rule="value",
    seeding="launch",
    greedy=False,
    valid_flag=True,
    graph_safe=False,  # seed and offset are passed by value
    sync_free=False,  # top_k_renorm_probs frees its scratch when it needs more
    batch_invariant=False,
)


class AiterPlugin:
    """Describes and builds the aiter sampler."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the promises of aiter's sources; nothing has run on hardware."""
        return PluginInfo(
            name="aiter",
            api_version=1,
            priority=30,
            operations={"sample": _SAMPLE},
            upstream=UPSTREAM,
            summary="AMD's aiter kernels: top-k and top-p per row on ROCm; not run on hardware yet",
            verified="no hardware: it has only run on a CPU, against a stand-in with the operators of 0.1.13 to "
            "0.1.20.post1",
        )

    @hookimpl
    def tokendraw_build(self, operation: str, device: torch.device, need: tokendraw.Need) -> AiterSampler:
        """Build the sampler for a device; aiter compiles its kernels in their first calls."""
        from tokendraw_aiter.sampler import AiterSampler  # imports torch and aiter

        return AiterSampler(device, need)


plugin = AiterPlugin()
