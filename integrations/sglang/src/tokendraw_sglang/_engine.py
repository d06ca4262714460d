"""Says whether the adapter supports the installed SGLang, by its version and names; names its default backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from tokendraw.engines import EngineState, changed_signature, examine

TESTED = ("0.5.23",)
"""Versions of the tests (`make test-engines`), whose sources were read. Other versions stay as they are."""


class EngineFilter(NamedTuple):
    """A filter of SGLang: names of fields of its ``SamplingBatchInfo``, and values in made-up batches."""

    column: str
    """Name of the tensor [B]."""
    flag: str
    """Whether a row may have the filter."""
    off: float
    example: float


FILTERS = {
    "top_k": EngineFilter("top_ks", "need_top_k_sampling", 1 << 30, 50),
    "top_p": EngineFilter("top_ps", "need_top_p_sampling", 1.0, 0.9),
    "min_p": EngineFilter("min_ps", "need_min_p_sampling", 0.0, 0.05),
}
"""By tokendraw's name."""
BATCH_FIELDS = (
    *("temperatures", "is_all_greedy", "is_any_greedy", "max_top_k", "sampling_seed"),
    *(field for each in FILTERS.values() for field in (each.column, each.flag)),
    "sampling_mask_batch_indices",
)
"""Fields in use of ``SamplingBatchInfo``."""


def state() -> EngineState:
    """Compare the installed SGLang with the tested versions; ``tokendraw doctor`` prints the result.

    It imports SGLang's sampler if the version is a tested one, and changes nothing. Raises nothing.
    """
    return examine(
        "SGLang",
        distributions=("sglang",),
        tested=TESTED,
        misfit=misfit,
        would="its sampler, with --sampling-backend tokendraw",
    )


def misfit() -> str | None:
    """Name the first missing or changed name of SGLang; None if all are as expected."""
    return next(_misfits(), None)


def _misfits() -> Iterator[str]:
    from sglang.srt.layers.logprob_processor import LogprobResult, OutputLogprobProcessor
    from sglang.srt.layers.sampler import Sampler, register_sampler_backend
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.runtime_context import RuntimeContext
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    methods = {
        register_sampler_backend: "backend factory",
        Sampler.forward: (
            "self logits_output sampling_info return_logprob top_logprobs_nums token_ids_logprobs positions"
        ),
        Sampler._preprocess_logits: "self logits sampling_info",
        Sampler._sync_token_ids_across_tp: "self batch_next_token_ids sampling_info",
        OutputLogprobProcessor.compute_logprobs: (
            "self logprobs top_logprobs_nums token_ids_logprobs batch_next_token_ids"
        ),
        LogprobResult.write_output_to: "self logits_output",
        SamplingBatchInfo.from_schedule_batch: "batch vocab_size",
        SamplingBatchInfo.merge_batch: "self other",
        HookRegistry.register: "target hook hook_type",
        RuntimeContext.override: "self source",
    }
    for function, leading in methods.items():
        reason = changed_signature(function.__qualname__, function, leading.split())
        if reason is not None:
            yield reason
    fields = {field.name for field in dataclasses.fields(SamplingBatchInfo)}
    for name in BATCH_FIELDS:
        if name not in fields:
            yield f"'SamplingBatchInfo' needs the field {name}, found none"


def default_backend() -> str:
    """Return ``flashinfer`` where SGLang finds it, else ``pytorch``: the default of ``--sampling-backend``."""
    from sglang.srt.runtime_context import get_platform

    return "flashinfer" if get_platform().has_flashinfer else "pytorch"
