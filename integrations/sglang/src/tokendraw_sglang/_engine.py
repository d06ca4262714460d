"""What the adapter knows of SGLang: tested versions, names in use, settings; the lines of its log. Imports no torch."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from tokendraw.engines import EngineState, changed_signature, examine

log = logging.getLogger("tokendraw.sglang")
BACKEND = "tokendraw"
"""The value of ``--sampling-backend``."""
KEPT = "tokendraw: SGLang left alone: %s"
KEPT_WITH_BACKEND = f"{KEPT}. It samples with its backend %r"
FELL_BACK = (
    "tokendraw: %r raised %s. SGLang goes on with its own sampling backend %r, where seeds give other tokens or none; "
    "restart it to draw through tokendraw again"
)
OWN_VERIFICATION = "tokendraw: SGLang verifies drafts, where seeds give other tokens or none: %s"
OWN_DETERMINISM = "tokendraw: SGLang draws with --enable-deterministic-inference: %s"
OWN_LOGPROBS = "tokendraw: a score raised %s. SGLang computes log-probabilities from now on"

TESTED = ("0.5.23",)
"""Versions of the tests (`make test-engines`), whose sources were read. Other versions stay as they are."""


class EngineFilter(NamedTuple):
    """A filter of SGLang: a tensor [B] and a flag of its ``SamplingBatchInfo``, and values in made-up batches."""

    column: str
    flag: str
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
    *("sampling_mask_batch_indices", "sampling_support_logprobs_capture_indices"),
)
"""Fields in use of ``SamplingBatchInfo``."""
LOGPROB_FIELDS = (
    *("token_logprobs", "top_logprobs_val", "top_logprobs_idx"),
    *("token_ids_logprobs_val", "token_ids_logprobs_idx"),
)
"""Fields of ``LogprobResult`` that are filled."""
EDIT_FIELDS = ("acc_additive_penalties", "acc_scaling_penalties", "logit_bias")
"""Fields in use of ``SamplingBatchInfo`` that edit the logits of a verification."""
DRAFT_FIELDS = (
    *("draft_token", "draft_token_num", "positions", "retrieve_index", "retrieve_next_token"),
    *("retrieve_next_sibling", "max_tree_depth", "tree_topk"),
)
"""Fields in use of ``EagleVerifyInput`` and ``NgramVerifyInput``."""

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
"""Values of ``--speculative-algorithm`` whose drafts ``eagle_sample`` verifies, by draws of its own alone."""


PROCESS = SimpleNamespace(verifier=None)
"""``verifier``: the sampler that verifies drafts in this process; None: SGLang does."""


def state() -> EngineState:
    """Compare the installed SGLang with the tested versions; ``tokendraw doctor`` prints the result.

    It imports SGLang's sampler if the version is a tested one, and changes nothing. Raises nothing.
    """
    return examine(
        "SGLang",
        distributions=("sglang",),
        tested=TESTED,
        misfit=lambda: next(_misfits(), None),
        would="its sampler, with --sampling-backend tokendraw",
    )


def _misfits() -> Iterator[str]:
    from sglang.srt.layers.logprob_processor import LogprobResult, OutputLogprobProcessor
    from sglang.srt.layers.sampler import Sampler, _SamplingMaskCapture, register_sampler_backend
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.runtime_context import RuntimeContext
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.sampling.sampling_params import SamplingParams

    signatures = {
        register_sampler_backend: "backend factory",
        Sampler.forward: (
            "self logits_output sampling_info return_logprob top_logprobs_nums token_ids_logprobs positions"
        ),
        Sampler._preprocess_logits: "self logits sampling_info",
        Sampler._sync_token_ids_across_tp: "self batch_next_token_ids sampling_info",
        Sampler._build_sampling_mask_output: (
            "self batch_next_token_ids sampling_mask_capture support_capture_indices"
        ),
        _SamplingMaskCapture: "weights token_ids selected_weight batch_rows",
        OutputLogprobProcessor.compute_logprobs: (
            "self logprobs top_logprobs_nums token_ids_logprobs batch_next_token_ids"
        ),
        LogprobResult.write_output_to: "self logits_output",
        SamplingBatchInfo.from_schedule_batch: "batch vocab_size",
        SamplingBatchInfo.filter_batch: "self keep_indices keep_indices_device",
        SamplingBatchInfo.merge_batch: "self other",
        SamplingBatchInfo.copy_for_forward: "self",
        SamplingParams.verify: "self vocab_size",
        HookRegistry.register: "target hook hook_type",
        RuntimeContext.override: "self source",
    }
    yield from _changed_signatures(signatures)
    yield from _missing_fields(SamplingBatchInfo, BATCH_FIELDS)
    yield from _missing_fields(LogprobResult, LOGPROB_FIELDS)


def verification_misfits() -> Iterator[str]:
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.layers.logprob_processor import compute_spec_logprobs
    from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.speculative.eagle_info import EagleVerifyInput
    from sglang.srt.speculative.eagle_utils import eagle_sample, verify_tree_greedy_func
    from sglang.srt.speculative.ngram_info import NgramVerifyInput
    from sglang.srt.speculative.spec_utils import SIMULATE_ACC_LEN  # noqa: F401 - read in each call
    from sglang.srt.utils.async_probe import sanitize_nan_logits

    yield from _changed_signatures(
        {
            eagle_sample: (
                "verify_input batch logits_output grammar_mask uno_target_max_top_k watermark_state "
                "watermark_full_mask"
            ),
            verify_tree_greedy_func: (
                "predicts accept_index accept_token_num candidates retrieve_index retrieve_next_token "
                "retrieve_next_sibling target_predict topk"
            ),
            compute_spec_logprobs: "batch logits_output predict accept_index chain_stride",
            apply_scaling_penalties: "logits scaling_penalties",
            sanitize_nan_logits: "logits msg",
            is_dp_attention_enabled: "",
        }
    )
    yield from _missing_fields(EagleVerifyInput, (*DRAFT_FIELDS, "draft_probs"))
    yield from _missing_fields(NgramVerifyInput, DRAFT_FIELDS)
    yield from _missing_fields(SamplingBatchInfo, (*EDIT_FIELDS, "has_watermark_candidates"))


def _changed_signatures(signatures: Mapping[Callable[..., Any], str]) -> Iterator[str]:
    for function, leading in signatures.items():
        reason = changed_signature(function.__qualname__, function, leading.split())
        if reason is not None:
            yield reason


def _missing_fields(owner: type[Any], names: Iterable[str]) -> Iterator[str]:
    found = {*inspect.signature(owner).parameters, *dir(owner)}
    for name in names:
        if name not in found:
            yield f"{owner.__name__!r} needs the field {name}, found none"


def unserved(spec: Any) -> str | None:
    """Say why the settings of speculative decoding leave the verification to SGLang; None: they do not.

    :param spec: SGLang's ``get_spec()``.
    """
    if spec.speculative_algorithm not in ALGORITHMS:
        return f"--speculative-algorithm {spec.speculative_algorithm} has a verification of its own"
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if getattr(spec, name) != 1.0:
            return f"--{name.replace('_', '-')} accepts drafts that the target would not draw"
    return None


def mode_of(spec: Any) -> Literal["block", "rejection"] | None:
    """Return how drafts are judged by their probabilities; None: SGLang gives none."""
    if not spec.speculative_use_rejection_sampling:
        return None
    return "block" if spec.speculative_use_block_verification else "rejection"


def default_backend() -> str:
    """Return SGLang's own default backend: an installed ``flashinfer``, unless inference is deterministic."""
    from sglang.srt.runtime_context import get_platform

    return "flashinfer" if get_platform().has_flashinfer and not is_deterministic() else "pytorch"


def is_deterministic() -> bool:
    """Return whether ``--enable-deterministic-inference`` is set: SGLang then gives every request a seed."""
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().deterministic.enable_deterministic_inference)


def without_seeds(info: Any, *fields: str) -> Any:
    """Copy SGLang's parameters of a batch for a draw of its own, which reads seeds in deterministic inference alone.

    :param fields: further fields to leave empty: edits that are already applied.
    """
    seeds = () if is_deterministic() else ("sampling_seed",)
    return dataclasses.replace(info, **dict.fromkeys((*seeds, *fields)))
