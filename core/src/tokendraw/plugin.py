"""The face for authors of plugins: the description of a sampler, and the hooks of the negotiation with the core.

A complete plugin, in the package that the entry point names::

    # pyproject.toml
    #   [project.entry-points."tokendraw.plugins"]
    #   acme = "acme_tokendraw:plugin"

    from tokendraw.plugin import Capabilities, PluginInfo, Upstream, hookimpl

    class AcmePlugin:
        @hookimpl
        def tokendraw_describe(self):
            return PluginInfo(
                name="acme",
                api_version=1,
                priority=50,
                summary="samples on Acme accelerators",
                upstream=Upstream("acme-kernels", ">=2.1,<3", tested=("2.1.4", "2.3.0")),
                operations={"sample": Capabilities(device_types=("cuda",), dtypes=("float32",))},
            )

        @hookimpl
        def tokendraw_probe(self, operation, host, need):
            return None  # or a sentence: what is missing on this machine

        @hookimpl
        def tokendraw_build(self, operation, device, need):
            from acme_tokendraw.sampler import AcmeSampler  # heavy imports belong here

            return AcmeSampler(device, need)

    plugin = AcmePlugin()

Importing that module must not import torch, triton or the upstream library: ``tokendraw list`` loads every plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokendraw._lazy import lazy_names

if TYPE_CHECKING:
    from tokendraw._torch.numpy_views import numpy_is_usable
    from tokendraw._torch.threads import one_thread
    from tokendraw.backends.description.capabilities import (
        FILTER_ORDERS,
        GUMBEL_DTYPES,
        INPUT_DTYPES,
        LOGPROBS_MODES,
        Capabilities,
        DraftKind,
        Filter,
        FilterOrder,
        Granularity,
        GumbelDtype,
        HostCapabilities,
        HostNeed,
        LogprobsMode,
        Need,
        Seeding,
        TieNeed,
        TieRule,
    )
    from tokendraw.backends.description.host import Host
    from tokendraw.backends.description.operation import Operation
    from tokendraw.backends.description.plugin_info import API_VERSION, PluginInfo, Release, Upstream
    from tokendraw.backends.discovery.hooks import hookimpl
    from tokendraw.backends.resolution.upstream import release_of
    from tokendraw.calls.call import Call
    from tokendraw.errors.formatting import printable
    from tokendraw.logprobs import (
        RowMasses,
        best_token_ids,
        least_shown,
        mode_values,
        pad_logprobs,
    )
    from tokendraw.operations.pack_sm90_w4.capabilities import Sm90W4Capabilities, Sm90W4PackerBackend
    from tokendraw.operations.plan_paged_kv.backend import PagedKVPlannerBackend
    from tokendraw.operations.process_logits.capabilities import (
        LogitsProcessorBackend,
        ProcessCapabilities,
        ProcessNeed,
    )
    from tokendraw.operations.sample.backend import SamplerBackend
    from tokendraw.operations.verify.capabilities import (
        DRAFT_KINDS,
        VERIFY_MODES,
        VerifierBackend,
        VerifyCapabilities,
        VerifyMode,
    )
    from tokendraw.operations.verify.logprobs import log_kept_mass_by_step, logprobs_by_step
    from tokendraw.output import PAD_LOGPROB, PAD_TOKEN_ID
    from tokendraw.parameters.edits import EDITS, Edit
    from tokendraw.request_slots.tables import EditFacts, RequestTables

_HOMES = {
    "backends.discovery.hooks": ("hookimpl",),
    "operations.sample.backend": ("SamplerBackend",),
    "calls.call": ("Call",),
    "backends.description.capabilities": (
        "FILTER_ORDERS",
        "GUMBEL_DTYPES",
        "INPUT_DTYPES",
        "LOGPROBS_MODES",
        "Capabilities",
        "DraftKind",
        "Filter",
        "FilterOrder",
        "Granularity",
        "GumbelDtype",
        "HostCapabilities",
        "HostNeed",
        "LogprobsMode",
        "Need",
        "Seeding",
        "TieNeed",
        "TieRule",
    ),
    "parameters.edits": ("EDITS", "Edit"),
    "backends.description.host": ("Host",),
    "logprobs": ("RowMasses", "best_token_ids", "least_shown", "mode_values", "pad_logprobs"),
    "backends.description.operation": ("Operation",),
    "output": ("PAD_LOGPROB", "PAD_TOKEN_ID"),
    "backends.description.plugin_info": ("API_VERSION", "PluginInfo", "Release", "Upstream"),
    "request_slots.tables": ("EditFacts", "RequestTables"),
    "errors.formatting": ("printable",),
    "backends.resolution.upstream": ("release_of",),
    "_torch.numpy_views": ("numpy_is_usable",),
    "_torch.threads": ("one_thread",),
    "operations.pack_sm90_w4.capabilities": ("Sm90W4Capabilities", "Sm90W4PackerBackend"),
    "operations.plan_paged_kv.backend": ("PagedKVPlannerBackend",),
    "operations.process_logits.capabilities": (
        "LogitsProcessorBackend",
        "ProcessCapabilities",
        "ProcessNeed",
    ),
    "operations.verify.capabilities": (
        "DRAFT_KINDS",
        "VERIFY_MODES",
        "VerifierBackend",
        "VerifyCapabilities",
        "VerifyMode",
    ),
    "operations.verify.logprobs": ("log_kept_mass_by_step", "logprobs_by_step"),
}

__all__ = [
    "API_VERSION",
    "DRAFT_KINDS",
    "EDITS",
    "FILTER_ORDERS",
    "GUMBEL_DTYPES",
    "INPUT_DTYPES",
    "LOGPROBS_MODES",
    "PAD_LOGPROB",
    "PAD_TOKEN_ID",
    "VERIFY_MODES",
    "Call",
    "Capabilities",
    "DraftKind",
    "Edit",
    "EditFacts",
    "Filter",
    "FilterOrder",
    "Granularity",
    "GumbelDtype",
    "Host",
    "HostCapabilities",
    "HostNeed",
    "LogitsProcessorBackend",
    "LogprobsMode",
    "Need",
    "Operation",
    "PagedKVPlannerBackend",
    "PluginInfo",
    "ProcessCapabilities",
    "ProcessNeed",
    "Release",
    "RequestTables",
    "RowMasses",
    "SamplerBackend",
    "Seeding",
    "Sm90W4Capabilities",
    "Sm90W4PackerBackend",
    "TieNeed",
    "TieRule",
    "Upstream",
    "VerifierBackend",
    "VerifyCapabilities",
    "VerifyMode",
    "best_token_ids",
    "hookimpl",
    "least_shown",
    "log_kept_mass_by_step",
    "logprobs_by_step",
    "mode_values",
    "numpy_is_usable",
    "one_thread",
    "pad_logprobs",
    "printable",
    "release_of",
]

__getattr__ = lazy_names(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__
