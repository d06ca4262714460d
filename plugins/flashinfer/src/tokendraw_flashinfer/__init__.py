"""FlashInfer's sampling kernels as a tokendraw plugin.

The entry point names this module, so it imports nothing heavy. :mod:`tokendraw_flashinfer.signatures` reads the
abilities of the installed version from its source, :mod:`~tokendraw_flashinfer.kernels` finds the files of its kernels,
and :mod:`~tokendraw_flashinfer.kernel_sequences` has the tables of entry points and versions. The calls are in
:mod:`~tokendraw_flashinfer.sampler` and :mod:`~tokendraw_flashinfer.verifier`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import tokendraw
from tokendraw.plugin import (
    Capabilities,
    Host,
    HostCapabilities,
    PluginInfo,
    VerifyCapabilities,
    hookimpl,
    printable,
)
from tokendraw_flashinfer import kernels
from tokendraw_flashinfer.kernel_sequences import RENORMS, SAMPLE, SEQUENCES, VERIFY, available, upstream
from tokendraw_flashinfer.signatures import DISTRIBUTION, EntryPoints

if TYPE_CHECKING:
    import torch

    from tokendraw.plugin import FilterOrder
    from tokendraw_flashinfer.sampler import FlashInferSampler

_SAMPLE = Capabilities(
    device_types=("cuda",),
    compute_capability=((7, 5), (12, 1)),
    min_sm_count=17,  # top_k_renorm_probs waits across blocks, which fewer cannot hold at once
    dtypes=("float32", "bfloat16", "float16"),
    logprobs_modes=(),
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row")),
    filter_orders=("top_k_first", "joint"),
    tie_rule="value",
    seeding="launch",
    greedy=False,
    valid_flag=True,
    graph_safe=True,
    sync_free=True,
    batch_invariant=False,
)


class FlashInferPlugin:
    """Describes FlashInfer's kernels, and builds the sampler and the verifier."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """Describe the installed version, or without an installation the newest known version."""
        entry_points = EntryPoints.installed()
        operations: dict[str, HostCapabilities | None] = {
            "sample": capabilities(entry_points),
            "verify": verify_capabilities(entry_points),
        }
        return PluginInfo(
            name="flashinfer",
            api_version=1,
            priority=40,
            operations={name: offer for name, offer in operations.items() if offer is not None},
            upstream=upstream(entry_points),
            summary="FlashInfer's kernels: top-k, top-p and min-p per row on NVIDIA GPUs; no seeds, no greedy rows",
            verified="NVIDIA H200, with both tested versions of FlashInfer; "
            "verify with 0.7.2.post1 alone, by the quick kit; 0.7.4: all lines but kept sets, not run again",
            kernels=printable(kernels.find().source),  # with a path of this machine
        )

    @hookimpl
    def tokendraw_probe(self, operation: str, host: Host, need: tokendraw.Need) -> str | None:
        """Say why FlashInfer cannot run here; its messages give a wrong reason in some cases."""
        entry_points = EntryPoints.installed()
        unsupported = entry_points.unsupported(*(SAMPLE if operation == "sample" else VERIFY))
        if unsupported is not None:
            folder = str(entry_points.folder)
            source = "no such thing" if entry_points.parameters else f"no source in {folder!r}"
            return f"needs {unsupported}, found {source}; reinstall {DISTRIBUTION}"
        return kernels.unnamed_target(host) or kernels.find(host.compute_capability).reason

    @hookimpl
    def tokendraw_build(
        self, operation: str, device: torch.device, need: tokendraw.Need
    ) -> FlashInferSampler:
        """Build for a device; compiles FlashInfer's sampling module unless it is compiled already."""
        from tokendraw_flashinfer.sampler import FlashInferSampler  # imports torch and flashinfer
        from tokendraw_flashinfer.verifier import FlashInferVerifier

        return FlashInferSampler(device, need) if operation == "sample" else FlashInferVerifier(device, need)


def capabilities(entry_points: EntryPoints) -> Capabilities:
    """Return the capabilities of a version by its entry points, of the newest version without any."""
    if not entry_points.parameters:
        return _SAMPLE
    kinds = available(SEQUENCES, entry_points)
    kinds_of: dict[FilterOrder, set[str]] = {
        "top_k_first": {"top_k_first"},
        "joint": {"joint", "both orders"},
    }
    return replace(
        _SAMPLE,
        filters=tuple(pair for pair in _SAMPLE.filters if pair[0] in kinds),
        filter_orders=tuple(order for order, needed in kinds_of.items() if needed <= kinds.keys()),
    )


def verify_capabilities(entry_points: EntryPoints) -> VerifyCapabilities | None:
    """Return the capabilities for verification; None if a version cannot verify drafts."""
    sampling, missing = capabilities(entry_points), set()
    if entry_points.parameters:
        if entry_points.unsupported(*VERIFY) is not None:
            return None
        missing = {name for name, step in RENORMS.items() if entry_points.unsupported(step) is not None}
    return VerifyCapabilities.of(
        sampling,
        filters=tuple(pair for pair in sampling.filters if pair[0] not in missing),
        verify_modes=("rejection",),
        draft_kinds=("probs", "logits"),
    )


plugin = FlashInferPlugin()
