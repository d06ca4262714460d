"""The compiled sampler, verifier and logits processor for CPUs: about two reads of the logits, the tokens of native.

The entry point names this module, so it imports nothing heavy. The calls are in :mod:`tokendraw_cpu.sampler`,
:mod:`~tokendraw_cpu.edits` and :mod:`~tokendraw_cpu.verification`, the compiled library and its C interface in
:mod:`~tokendraw_cpu.library`; its source is in ``cpp`` of the distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw.plugin import (
    DRAFT_KINDS,
    EDITS,
    FILTER_ORDERS,
    GUMBEL_DTYPES,
    INPUT_DTYPES,
    LOGPROBS_MODES,
    MOMENTS,
    VERIFY_MODES,
    Capabilities,
    Host,
    HostNeed,
    PluginInfo,
    ProcessCapabilities,
    VerifyCapabilities,
    hookimpl,
)
from tokendraw_cpu.library import missing_library

if TYPE_CHECKING:
    import torch

    from tokendraw_cpu.edits import CpuProcessor
    from tokendraw_cpu.verification import CpuVerifier

_SAMPLE = Capabilities(
    device_types=("cpu",),
    dtypes=INPUT_DTYPES,
    logprobs_modes=LOGPROBS_MODES,
    logprob_token_ids=True,
    filters=(("top_k", "per_row"), ("top_p", "per_row"), ("min_p", "per_row"), ("xtc", "per_row")),
    row_moments=MOMENTS,
    filter_orders=FILTER_ORDERS,
    tie_rule="value",
    seeding="counter",
    greedy=True,
    gumbel_dtypes=GUMBEL_DTYPES,
    valid_flag=True,
    threshold=True,
    sync_free=True,
    batch_invariant=True,
    max_vocab_size=1 << 24,
)
_PROCESS = ProcessCapabilities(
    device_types=("cpu",), dtypes=INPUT_DTYPES, drafts=True, edits=EDITS, sync_free=True
)
_VERIFY = VerifyCapabilities.of(
    _SAMPLE, verify_modes=VERIFY_MODES, draft_kinds=DRAFT_KINDS, ragged_drafts=True, placeholder_drafts=True
)


class CpuPlugin:
    """Describes and builds the compiled sampler and processor of logits."""

    @hookimpl
    def tokendraw_describe(self) -> PluginInfo:
        """The first choice on a CPU."""
        return PluginInfo(
            name="cpu",
            api_version=1,
            priority=50,
            operations={"sample": _SAMPLE, "verify": _VERIFY, "process_logits": _PROCESS},
            summary="a compiled sampler for CPUs: about two reads of the logits, the tokens of native",
            verified="x86-64 with AVX-512, AVX2 and neither (torch 2.13.0); not run on aarch64",
        )

    @hookimpl
    def tokendraw_probe(self, operation: str, host: Host, need: HostNeed) -> str | None:
        """Say why the library is missing, if it is."""
        return missing_library()

    @hookimpl
    def tokendraw_build(
        self, operation: str, device: torch.device, need: HostNeed
    ) -> CpuVerifier | CpuProcessor:
        """Load the library; the object for ``sample`` and ``verify`` does both."""
        if operation == "process_logits":
            from tokendraw_cpu.edits import CpuProcessor  # imports torch

            return CpuProcessor()
        from tokendraw import Need
        from tokendraw_cpu.verification import CpuVerifier  # imports torch

        assert isinstance(need, Need)
        return CpuVerifier(need)


plugin = CpuPlugin()
