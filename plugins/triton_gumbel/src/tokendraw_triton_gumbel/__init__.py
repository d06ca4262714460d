"""The Triton backend: a sampler that reads the logits about once, and edits of logits; NVIDIA and AMD.

The entry point names this module, so it imports nothing heavy. The operations are :mod:`.sampler` and
:mod:`.processor`. Below them, each imports only from those behind it: ``compiled_calls`` (the launches of a kind of
call in their order), ``kernels`` (a file a launch: device code, and behind it the host side), ``launch``, ``plan`` and
``compilation``. ``kernels.rows`` and ``kernels.values`` are what several launches share, and import none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokendraw
from tokendraw.plugin import (
    MOMENTS,
    Capabilities,
    PluginInfo,
    ProcessCapabilities,
    VerifyCapabilities,
    hookimpl,
)
from tokendraw_triton_gumbel.upstream import UPSTREAM

if TYPE_CHECKING:
    import torch

    from tokendraw_triton_gumbel.processor import TritonLogitsProcessor
    from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

_SAMPLE = Capabilities(
    device_types=("cuda", "rocm"),
    compute_capability=((8, 0), None),
    rocm_archs=("gfx90a", "gfx942", "gfx950", "gfx1201"),
    dtypes=("float32", "bfloat16", "float16"),
    logprob_token_ids=True,
    logprobs_modes=(
        "raw_logprobs",
        "raw_logits",
        "processed_logprobs",
        "processed_logits",
        "temperature_logprobs",
    ),
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row"), ("xtc", "per_row")),
    filter_orders=("top_k_first", "joint", "temperature_last"),
    row_moments=MOMENTS,
    tie_rule="value",
    seeding="counter",
    greedy=True,
    gumbel_dtypes=("fp32", "fp64"),
    valid_flag=True,
    threshold=True,
    graph_safe=True,
    sync_free=True,
    batch_invariant=True,
    max_vocab_size=1 << 21,
    compiles_on_demand=True,
)
_VERIFY = VerifyCapabilities.of(
    _SAMPLE,
    verify_modes=("rejection", "block", "coupled"),
    draft_kinds=("probs", "logits", "chosen"),
    ragged_drafts=True,
    placeholder_drafts=True,
)
_PROCESS = ProcessCapabilities(
    device_types=_SAMPLE.device_types,
    compute_capability=_SAMPLE.compute_capability,
    rocm_archs=_SAMPLE.rocm_archs,
    dtypes=_SAMPLE.dtypes,
    drafts=True,
    graph_safe=True,
    sync_free=True,
)


class TritonGumbelPlugin:
    """Describes and builds the Triton sampler and the processor of logits."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """The first choice on a GPU."""
        return PluginInfo(
            name="triton-gumbel",
            api_version=1,
            priority=50,
            operations={
                "sample": _SAMPLE,
                "verify": _VERIFY,
                "score": _SAMPLE,
                "process_logits": _PROCESS,
            },
            upstream=UPSTREAM,
            summary="Triton kernels for NVIDIA and AMD: one read of the logits, seeds per row, exact filters",
            verified="NVIDIA H100 and H200 (torch 2.11.0, triton 3.6.0); compiled for AMD, not run there",
        )

    @hookimpl
    def tokendraw_build(
        self, operation: str, device: torch.device, need: tokendraw.plugin.HostNeed
    ) -> TritonGumbelSampler | TritonLogitsProcessor:
        """Build the object of an operation on a device: the sampler draws, verifies and scores."""
        if operation == "process_logits":
            from tokendraw_triton_gumbel.processor import TritonLogitsProcessor  # imports torch and triton

            return TritonLogitsProcessor(device)
        from tokendraw_triton_gumbel.sampler import TritonGumbelSampler

        assert isinstance(need, tokendraw.Need)
        return TritonGumbelSampler(device, need)


plugin = TritonGumbelPlugin()
