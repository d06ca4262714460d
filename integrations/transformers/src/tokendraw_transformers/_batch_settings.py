"""Settings of ``generate_batch``: limits and processors as ``generate`` takes them from a config, or a refusal by name.

transformers' continuous batching passes over most processors and stopping criteria, or breaks on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    WatermarkLogitsProcessor,
)
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationMode

from tokendraw import InvalidParameterError, SamplingMetadata, SamplingParams
from tokendraw_transformers._batch_edits import is_batch_safe, is_edit
from tokendraw_transformers._edits import edit_params
from tokendraw_transformers._warpers import WARPER_FIELDS, own_warper

_FIELDS = {
    UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale",
    SequenceBiasLogitsProcessor: "sequence_bias",
    EncoderRepetitionPenaltyLogitsProcessor: "encoder_repetition_penalty",
    NoRepeatNGramLogitsProcessor: "no_repeat_ngram_size",
    RepetitionPenaltyLogitsProcessor: "repetition_penalty",
    EncoderNoRepeatNGramLogitsProcessor: "encoder_no_repeat_ngram_size",
    NoBadWordsLogitsProcessor: "bad_words_ids",
    ForcedBOSTokenLogitsProcessor: "forced_bos_token_id",
    ForcedEOSTokenLogitsProcessor: "forced_eos_token_id",
    ExponentialDecayLengthPenalty: "exponential_decay_length_penalty",
    WatermarkLogitsProcessor: "watermarking_config",
    SynthIDTextWatermarkLogitsProcessor: "watermarking_config",
    **WARPER_FIELDS,
}
"""Fields of a ``GenerationConfig`` by the processors that transformers makes of them, where one may be refused."""
REPLACED_FIELDS = (
    *("sequence_bias", "repetition_penalty", "bad_words_ids", "min_length", "min_new_tokens"),
    *("remove_invalid_values", "suppress_tokens", "begin_suppress_tokens"),
)
"""Fields whose processors tokendraw takes over, so that the manager of transformers is to make none of them."""
_UNSUPPORTED = ("max_time", "stop_strings", "token_healing", "logprobs")
"""Fields that end a text, change a prompt or ask for an output, and that continuous batching does not read."""


def check_settings(model: Any, seeds: Sequence[int | None], config: Any, batching: Any) -> None:
    """Refuse invalid seeds, and settings that no request of a batch can have.

    :raises InvalidParameterError: names the setting.
    """
    params = [SamplingParams(seed=seed) for seed in seeds]
    SamplingMetadata.from_params(params, positions=[0] * len(params))  # refuses what is no seed
    if (config.num_return_sequences or 1) > 1:
        raise InvalidParameterError(
            f"'generate_batch' needs num_return_sequences=1, found {config.num_return_sequences}: copies of a request "
            "have its seed. Pass the prompt as often, each with a seed of its own."
        )
    _check_mode(config)
    for name in ("return_logprobs", "per_request_processors"):
        if getattr(batching, name, False):
            raise InvalidParameterError(
                f"'generate_batch' needs {name}=False in its ContinuousBatchingConfig, found True. Leave it out, or "
                "use model.generate_batch."
            )
    if getattr(model, "_cached_continuous_batching_manager", None) is not None:
        raise InvalidParameterError(
            "'generate_batch' needs a manager of its own, found that the model keeps one. Call "
            "model.destroy_cached_continuous_batching_manager()."
        )


def _check_mode(config: Any) -> None:
    """Refuse generation modes other than a token a step.

    :raises InvalidParameterError: names the mode or the field.
    """
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        raise InvalidParameterError(
            f"'generate_batch' needs sampling or greedy search, found {mode.value}. Leave out what asks for it, as "
            "num_beams."
        )
    for field in _UNSUPPORTED:
        value = getattr(config, field, None)
        if value is not None and value is not False:
            raise _refusal(field, value)


def new_token_limits(
    model: Any, config: Any, prompts: Sequence[Sequence[int]], caller_config: Any
) -> list[int]:
    """Return the number of new tokens of each request, by the lengths of a config, as ``generate`` does.

    :param config: filled up with the defaults of the model and of transformers.
    :param caller_config: the caller's own config, or None.
    :raises InvalidParameterError: a prompt leaves no room for a token.
    """
    if config.max_new_tokens is not None:
        return [config.max_new_tokens] * len(prompts)
    limits = []
    is_default = (
        getattr(caller_config, "max_length", None) is None and model.generation_config.max_length is None
    )
    max_positions = getattr(model.config, "max_position_embeddings", None)
    for row, prompt in enumerate(prompts):
        length = config.max_length
        if is_default:
            length += len(prompt)
            length = length if max_positions is None else min(length, max_positions)
        if length <= len(prompt):
            raise InvalidParameterError(
                f"'max_length' of prompt {row} needs more than its {len(prompt)} tokens, found {length}. Pass "
                "max_new_tokens."
            )
        limits.append(length - len(prompt))
    return limits


def prepare_processors(model: Any, config: Any) -> LogitsProcessorList:
    """Let transformers make the processors of a config, and refuse processors that a batch cannot have.

    Then no field of the config asks for a processor that tokendraw takes over.

    :raises InvalidParameterError: names the field.
    """
    vocab_size = vocab_size_of(model)
    model._prepare_special_tokens(config, device=model.device)
    if config.min_new_tokens is not None:
        config.min_length = None  # as in generate
    any_prompt = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    prepared: LogitsProcessorList = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=any_prompt.shape[1],
        encoder_input_ids=any_prompt,
        prefix_allowed_tokens_fn=None,
        logits_processor=LogitsProcessorList(),
        device=model.device,
        model_kwargs={},
    )
    for processor in prepared:
        field = _FIELDS.get(type(processor), type(processor).__name__)
        value = getattr(config, field, processor)
        if is_edit(processor):
            params = edit_params({type(processor): processor}, vocab_size, prompt_length=1, num_counted=0)
            try:
                params.check(vocab_size)
            except InvalidParameterError as error:
                raise _refusal(field, value, f": {error} ") from None
        elif not is_batch_safe(processor):
            raise _refusal(field, value)
    warper = own_warper(prepared, do_sample=bool(config.do_sample))
    if warper is not None:
        raise _refusal(WARPER_FIELDS[type(warper)], getattr(config, WARPER_FIELDS[type(warper)]))
    for field in REPLACED_FIELDS:
        setattr(config, field, None)
    return prepared


def without_async_batches(batching: Any) -> Any:
    """Return a config without asynchronous batches, which begin before the last step's tokens are known.

    :raises InvalidParameterError: the caller asks for asynchronous batches.
    """
    if getattr(batching, "use_async_batching", None):
        raise InvalidParameterError(
            "'generate_batch' needs use_async_batching=False in its ContinuousBatchingConfig for settings that edit "
            "scores, as repetition_penalty, found True. Leave it out."
        )
    return replace(batching or ContinuousBatchingConfig(), use_async_batching=False)


def vocab_size_of(model: Any) -> int:
    """Return the number of scores of a row."""
    head = model.get_output_embeddings()
    size: int = model.config.get_text_config().vocab_size if head is None else head.weight.shape[0]
    return size


def _refusal(field: str, value: object, detail: str = ". ") -> InvalidParameterError:
    remedy = f"Leave out {field}, or use model.generate with custom_generate=tokendraw_transformers.generate"
    return InvalidParameterError(
        f"'generate_batch' needs settings that it serves in continuous batching, found {field}={value!r}{detail}"
        f"{remedy}."
    )
