"""Sampling from a vocabulary whose logits lie on several ranks, without gathering the logits.

::

    shard = tokendraw_ranks.VocabShard(start=lo, vocab_size=V)
    sampler = tokendraw.load("sample_over_ranks", device=device)
    out = sampler.sample(local_logits, metadata, shard)  # the same on every rank

The entry points name this module, so it imports nothing heavy. :mod:`.sampling` has the order of what a call does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokendraw.plugin import (
    GUMBEL_DTYPES,
    INPUT_DTYPES,
    LOGPROBS_MODES,
    MOMENTS,
    Capabilities,
    Need,
    Operation,
    PluginInfo,
    Release,
    Upstream,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

    from tokendraw_ranks.operation import RanksSampler
    from tokendraw_ranks.shard import VocabShard as VocabShard

OPERATION = Operation(
    name="sample_over_ranks",
    module="tokendraw_ranks.operation",
    capabilities=Capabilities,
    need=Need,
    methods=("sample",),
)
_SERVED = Capabilities(
    device_types=None,
    dtypes=INPUT_DTYPES,
    logprobs_modes=LOGPROBS_MODES,
    filters=tuple((name, "per_row") for name in ("top_k", "top_p", "min_p")),
    row_moments=MOMENTS,
    filter_orders=("top_k_first", "joint"),
    seeding="counter",
    greedy=True,
    gumbel_dtypes=GUMBEL_DTYPES,
    valid_flag=True,
    threshold=True,
    graph_safe=True,
    sync_free=True,
    batch_invariant=True,
    compiles_on_demand=True,
)


class RanksPlugin:
    """Describes and builds the sampler."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the sampler: what a shard cannot serve is refused by the call."""
        return PluginInfo(
            name="ranks",
            api_version=1,
            priority=50,
            operations={"sample_over_ranks": _SERVED},
            upstream=Upstream(
                "torch",
                ">=2.6",
                tested=("2.13.0",),
                releases=(Release("0", "has all that is called"),),
            ),
            summary="a vocabulary that is split over ranks, by PyTorch and, on GPUs, triton-gumbel's statistics",
            verified="CPU (x86-64, torch 2.13.0)",
        )

    @hookimpl
    def tokendraw_build(self, operation: str, device: torch.device, need: Need) -> RanksSampler:
        """Build the sampler."""
        from tokendraw_ranks.operation import RanksSampler  # imports torch

        return RanksSampler(device, need)


plugin = RanksPlugin()


def __getattr__(name: str) -> Any:
    if name == "VocabShard":
        from tokendraw_ranks.shard import VocabShard

        return VocabShard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
