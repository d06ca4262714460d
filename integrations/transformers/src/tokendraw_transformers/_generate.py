"""The callable for ``custom_generate``: runs transformers' decoding loop with its last step replaced."""

from __future__ import annotations

import copy
import inspect
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList
from transformers.generation import GenerationMode

from tokendraw import InvalidParameterError, Sampler
from tokendraw_transformers._drawing import BatchDrawer, DrawProcessor, Processors, RecordingStoppingCriteria
from tokendraw_transformers._edits import with_edits
from tokendraw_transformers._errors import CALLER_ARGUMENTS, InvalidRowsWarning, SeedsUnusedWarning, warn
from tokendraw_transformers._output import stacked, with_draws
from tokendraw_transformers._seeds import Seeds, row_seeds
from tokendraw_transformers._warpers import plan


def position_offset(
    model: Any, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any]
) -> Tensor:
    """Return offsets [B] int64: positions of the rows at a step, less ``input_ids.shape[1]`` at the step.

    It is -1, less the left padding, plus what ``input_ids`` does not hold of the sequence: where it goes on from a
    cache, or from embeddings, the attention mask covers the whole.

    :raises InvalidParameterError: the attention mask is not [B, L], so padding is unknown.
    """
    mask = _mask(model, model_kwargs)
    rows, length = input_ids.shape
    if mask is None:  # nothing is padding; transformers drops a mask of ones and keeps its length here
        total_length = (
            length if model.config.is_encoder_decoder else getattr(generation_config, "_mask_length", length)
        )
        return torch.full((rows,), total_length - length - 1, dtype=torch.int64, device=input_ids.device)
    if mask.dim() != 2:
        raise InvalidParameterError(
            f"'attention_mask' needs shape [B, L], by which padding is told from tokens, found {list(mask.shape)}."
        )
    return mask.to(input_ids.device).ne(0).sum(-1) - length - 1


def prompts(model: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> list[list[int]]:
    """Return the token ids of each row's prompt, without padding. Waits for the device."""
    mask, rows = _mask(model, model_kwargs), input_ids.tolist()
    if mask is None or mask.shape != input_ids.shape:
        return rows
    return [
        [token for token, is_token in zip(*row, strict=True) if is_token]
        for row in zip(rows, mask.tolist(), strict=True)
    ]


def _mask(model: Any, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of the decoding model; transformers drops a mask of ones."""
    return model_kwargs.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")


def caller_arguments() -> dict[str, Any]:
    """Look up the arguments of the running ``model.generate`` in its frame; empty without a running call.

    ``generate`` drops these on the way to a callable ``custom_generate``, without a word
    (``_extract_generation_mode_kwargs`` of transformers 5).
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:
            return {}
        frame = frame.f_back
    return {name: frame.f_locals[name] for name in CALLER_ARGUMENTS}


_NAME = "'custom_generate=tokendraw_transformers.generate'"


def generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool | None = None,
    streamer: Any = None,
    *,
    seeds: Seeds = None,
    sampler: str | Sampler | None = None,
    logprobs: int | None = None,
    logprobs_mode: str | None = None,
    kept_ids: int | None = None,
    entropy: bool | None = None,
    **model_kwargs: Any,
) -> Any:
    """Draw through tokendraw: ``model.generate(..., custom_generate=tokendraw_transformers.generate)``.

    ``model.generate`` prepares the first five arguments and ``model_kwargs``; the others are passed to it by name.
    Stopping criteria, caches, streamers and outputs are transformers' own. So are its processors, in their own order,
    but for those that tokendraw does with the same result: repetition_penalty, min_new_tokens, suppress_tokens, and
    sequence_bias and bad_words_ids of single tokens. Temperature, top-k, top-p and min-p are tokendraw's, with the
    values that transformers prepared. Arguments that are None are looked up in the ``GenerationConfig``, which may hold
    any of these, such as ``seeds=7``.

    :param seeds: a list with one entry a row of the output, so ``num_return_sequences`` of them for each prompt; or a
        base seed, from which each row gets its own by its prompt, see :func:`derived_seed`; or a callable that gets
        each :class:`Row`; None: every row fresh from torch's generator. A row with a seed draws the same tokens in any
        batch, at any place, with any left padding. Greedy decoding draws nothing, so seeds cause a warning.
    :param sampler: name of a tokendraw plugin, or one that :func:`tokendraw.load_sampler` returned; None: the best for
        the device of ``input_ids``.
    :param logprobs: log-probabilities of the drawn tokens, and of this many best beside them; None: none. Needs
        ``return_dict_in_generate=True``.
    :param logprobs_mode: see :func:`tokendraw.load_sampler`; "raw" is what transformers' processors leave, before
        the warpers. None: ``raw_logprobs``.
    :param kept_ids: the ids that the filters kept at each step, at most this many; None: none. Like ``entropy`` it
        needs ``return_dict_in_generate=True``.
    :param entropy: whether to return the entropy of each step, of the softmax that ``logprobs_mode`` shows.
    :returns: what ``model.generate`` returns: [B, L] int64, or with ``return_dict_in_generate=True`` a
        :class:`DrawDecoderOnlyOutput` or :class:`DrawEncoderDecoderOutput`.
    :raises InvalidParameterError: a ValueError: an argument is outside its range, or asks for what is not served.
    :raises TransformersVersionError: the decoding loop is not the one that the adapter knows.
    """

    def given(name: str, value: Any) -> Any:
        """Look up a missing argument in the ``GenerationConfig``, which keeps entries unknown to transformers."""
        return getattr(generation_config, name, None) if value is None else value

    seeds, sampler = given("seeds", seeds), given("sampler", sampler)
    logprobs, logprobs_mode = given("logprobs", logprobs), given("logprobs_mode", logprobs_mode)
    kept_ids, entropy = given("kept_ids", kept_ids), given("entropy", entropy)
    arguments = caller_arguments()
    streamer = arguments.get("streamer") if streamer is None else streamer
    synced_gpus = arguments.get("synced_gpus") if synced_gpus is None else synced_gpus
    # transformers' own default, by its own method: True under FSDP and DeepSpeed ZeRO-3
    mode = model._extract_generation_mode_kwargs(None, {}, synced_gpus, None, None)
    _check_mode(model, generation_config, arguments.get("assistant_model"))
    asked = {"logprobs": logprobs, "kept_ids": kept_ids, "entropy": entropy or None}
    for name, value in asked.items():
        if value is not None and not generation_config.return_dict_in_generate:
            raise InvalidParameterError(
                f"'{name}' needs return_dict_in_generate=True, found False. Pass return_dict_in_generate=True."
            )

    do_sample = bool(generation_config.do_sample)
    plans = plan(logits_processor, do_sample=do_sample)
    rows, copies = input_ids.shape[0], generation_config.num_return_sequences or 1
    subject = f"a row, {rows}"
    if copies > 1:
        subject += f" ({rows // copies} prompts, num_return_sequences={copies})"
    seeds_by_row = row_seeds(seeds, rows, lambda: prompts(model, input_ids, model_kwargs), subject=subject)
    params = replace(plans.params, logprobs=logprobs)
    draws = DrawProcessor(
        plans,
        BatchDrawer(
            [replace(params, seed=seed) for seed in seeds_by_row],
            sampler,
            logprobs_mode,
            max_kept=kept_ids,
            has_entropy=bool(entropy),
        ),
        position_offset(model, input_ids, generation_config, model_kwargs),
        records_scores=bool(generation_config.return_dict_in_generate and generation_config.output_scores),
    )
    if not do_sample and any(seed is not None for seed in seeds_by_row):
        warn(
            "'seeds' need do_sample=True, found False: greedy decoding draws nothing. Pass do_sample=True, or leave "
            "out seeds.",
            SeedsUnusedWarning,
        )
    criteria = RecordingStoppingCriteria(stopping_criteria)
    by_argmax = copy.copy(generation_config)
    by_argmax.do_sample = False
    result = model._sample(
        input_ids,
        logits_processor=Processors(with_edits(plans.processors), draws),
        stopping_criteria=criteria,
        generation_config=by_argmax,
        synced_gpus=mode["synced_gpus"],
        streamer=streamer,
        **model_kwargs,
    )
    draws.check_taken()

    sequences = result.sequences if generation_config.return_dict_in_generate else result
    steps = draws.steps[: sequences.shape[1] - input_ids.shape[1]]
    fields = stacked(steps, criteria.drawn_steps(len(steps)))
    invalid_rows = (~fields["valid"]).nonzero().flatten().tolist()
    if invalid_rows:
        warn(
            f"rows {', '.join(map(str, invalid_rows))} met NaN in their scores, or none above -inf. Look at the model, "
            "or pass remove_invalid_values=True.",
            InvalidRowsWarning,
        )
    return with_draws(result, fields) if generation_config.return_dict_in_generate else result


def _check_mode(model: Any, generation_config: Any, assistant_model: Any) -> None:
    """Refuse generation modes other than a token a row and step, by a single model."""
    if type(model)._sample is not GenerationMixin._sample:
        raise InvalidParameterError(
            f"{_NAME} needs the decoding loop of transformers, found that {type(model).__name__} has one of its own. "
            "Leave out custom_generate."
        )
    mode = generation_config.get_generation_mode(assistant_model)
    if mode == GenerationMode.ASSISTED_GENERATION:
        raise InvalidParameterError(
            f"{_NAME} needs one model and one token a step, found assisted generation. Leave out custom_generate, and "
            "pass logits_processor=[tokendraw_transformers.DrawLogitsProcessor(...)] with do_sample=False: it draws "
            "the same tokens."
        )
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        raise InvalidParameterError(
            f"{_NAME} needs sampling or greedy search, found {mode.value}. Leave out what asks for it, as num_beams, "
            "or custom_generate."
        )
