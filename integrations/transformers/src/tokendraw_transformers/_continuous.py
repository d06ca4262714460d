"""Continuous batching with a seed for every request, through undocumented names of transformers.

The manager of transformers draws with one generator for all requests that share a step, so the tokens of a request
depend on its neighbours and on when it arrived. Its logits processors may bring an int32 a request to the device, in
tensors that a CUDA graph can hold. Three processors bring the two halves of the seed and the position. The last
processor draws, and returns scores with their maximum at the drawn token. The edits of :mod:`_batch_edits` come first.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from tokendraw import InvalidParameterError, Need, Sampler, SamplingMetadata
from tokendraw_transformers._batch_edits import BatchEdits, is_edit, with_batch_edits
from tokendraw_transformers._batch_settings import (
    check_settings,
    new_token_limits,
    prepare_processors,
    vocab_size_of,
    without_async_batches,
)
from tokendraw_transformers._loading import load_sampler
from tokendraw_transformers._scores import one_hot_scores
from tokendraw_transformers._seeds import Seeds, row_seeds, warn_of_unused_seeds
from tokendraw_transformers._warpers import StepPlan, plan

PRIVATE_NAMES = (
    "GenerationMixin._prepare_generation_config",
    "GenerationMixin._prepare_special_tokens",
    "GenerationMixin._get_logits_processor",
    "ContinuousBatchingManager.logit_processor",
    "ContinuousBatchingManager.generation_config",
    "ContinuousBatchingManager.continuous_batching_config",
    "ContinuousBatchingLogitsProcessorList.logits_processor",
    "ContinuousBatchingLogitsProcessorList.tensors_required",
    "ContinuousBatchingLogitsProcessor",
    "RequestState.request_id",
    "RequestState.initial_tokens",
    "RequestState.generated_tokens",
    "RequestState.position_offset",
    "RequestState.logit_processor_kwargs",
)
"""Undocumented names of transformers' continuous batching in use here."""


def generate_batch(
    model: Any,
    inputs: Sequence[Sequence[int]] | Tensor,
    *,
    seeds: Seeds = None,
    sampler: str | Sampler | None = None,
    generation_config: Any = None,
    continuous_batching_config: Any = None,
    max_new_tokens: int | None = None,
    warmup: bool = True,
    allow_private_names: bool = False,
) -> dict[str, Any]:
    """Run ``model.generate_batch`` with a seed for every request, so that its tokens do not depend on its batch.

    They are those of ``model.generate(custom_generate=tokendraw_transformers.generate)`` with the same seeds and the
    same settings: what the settings leave out is filled in as ``generate`` does it, from ``model.generation_config``
    and then from the defaults of transformers (top-k is 50, and 20 new tokens), which ``model.generate_batch`` itself
    does not. Processors are served through :class:`tokendraw.RequestSlots`, or refused by the name of their setting
    before the model is called.

    :param inputs: token ids of each prompt.
    :param seeds: as in :func:`generate`, an entry or a :class:`Row` for each prompt; None: what the settings hold,
        else fresh ones from torch's generator.
    :param sampler: name of a tokendraw plugin, or a loaded sampler; None: the best for the device of the model.
    :param generation_config: as in ``model.generate``; what its temperature, top-k, top-p and min-p do is done by
        tokendraw.
    :param max_new_tokens: most tokens of each request; None: as ``generate`` takes it from the settings.
    :param allow_private_names: has to be True: the error message lists the names that are touched.
    :returns: ``GenerationOutput`` by request id, in the order of ``inputs``.
    :raises InvalidParameterError: a ValueError: the flag is missing, or an argument asks for what is not served.
    :raises RuntimeError: transformers' generation thread ended before the last request.
    """
    if not allow_private_names:
        raise InvalidParameterError(
            "'generate_batch' needs allow_private_names=True, found False: it touches "
            f"{', '.join(PRIVATE_NAMES)}, which any release of transformers may change. Pass it, or use "
            "custom_generate=tokendraw_transformers.generate."
        )
    config, _ = model._prepare_generation_config(generation_config)
    prompts = _token_ids(inputs)
    seeds = getattr(config, "seeds", None) if seeds is None else seeds
    sampler = getattr(config, "sampler", None) if sampler is None else sampler
    seeds_by_row = row_seeds(seeds, len(prompts), lambda: prompts, subject=f"a prompt, {len(prompts)}")
    check_settings(model, seeds_by_row, config, continuous_batching_config)
    config.max_new_tokens = config.max_new_tokens if max_new_tokens is None else max_new_tokens
    limits = new_token_limits(model, config, prompts, generation_config)
    prepared = prepare_processors(model, config)
    is_edited = any(map(is_edit, prepared))
    batching = without_async_batches(continuous_batching_config) if is_edited else continuous_batching_config
    do_sample = bool(config.do_sample)
    warn_of_unused_seeds(seeds_by_row, do_sample=do_sample, stacklevel=2)
    manager = model.init_continuous_batching(generation_config=config, continuous_batching_config=batching)
    try:
        plans = plan(prepared, do_sample=do_sample)
        max_tokens = max([1, *(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))])
        edits = with_batch_edits(plans.processors, manager, len(prompts), max_tokens, vocab_size_of(model))
        manager.logit_processor = _processors(replace(plans, processors=edits), sampler, model.device)
        manager.generation_config.do_sample = False  # the maximum is the token drawn
        if warmup:
            manager.warmup()
        manager.start()
        ids = [
            manager.add_request(
                prompt,
                max_new_tokens=limit,
                **({"prompt_length": len(prompt)} if is_edited else {}),
                **({} if seed is None else {"seed": seed}),
            )
            for prompt, limit, seed in zip(prompts, limits, seeds_by_row, strict=True)
        ]
        return _results(manager, ids)
    finally:
        manager.stop(block=True, timeout=5)
        manager.destroy()


def _token_ids(inputs: Any) -> list[list[int]]:
    """Return the token ids of each prompt.

    :raises InvalidParameterError: they are no integers.
    """
    try:
        return [
            [operator.index(token) for token in (prompt.tolist() if isinstance(prompt, Tensor) else prompt)]
            for prompt in inputs
        ]
    except TypeError:
        raise InvalidParameterError(
            "'inputs' needs the token ids of each prompt, lists of integers, found something else. Pass "
            "tokenizer(texts)['input_ids']."
        ) from None


def _results(manager: Any, ids: Sequence[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    while len(results) < len(ids):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            results[result.request_id] = result
        elif result is None and not manager.is_running():
            raise RuntimeError(
                f"transformers' generation thread ended with {len(ids) - len(results)} requests open. Its log says why."
            )
    return {request_id: results[request_id] for request_id in ids}


def _processors(plans: StepPlan, sampler: str | Sampler | None, device: torch.device) -> Any:
    low, high = SeedHalf(0), SeedHalf(32)
    drawing = Draw(plans, sampler, device, low, high)
    processors = ContinuousBatchingLogitsProcessorList(
        LogitsProcessorList([*plans.processors, low, high, drawing]), drop_unsupported_processors=False
    )
    processors.tensors_required = 3 + sum(isinstance(processor, BatchEdits) for processor in plans.processors)
    return processors


class SeedHalf(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Brings 32 bits of each request's seed to the device. It does not change the scores."""

    supported_kwargs: dict[str, type] = {"seed": int}  # noqa: RUF012  # as its base class has it
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, shift: int) -> None:
        self._shift = shift
        self.bits = torch.empty(0, dtype=torch.int32, device="cpu")

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Fill the tensor [N] int32 in use before the first request."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        """Return the bits of each request, [requests] int32; without a seed they are fresh at every step."""
        request_seeds = [
            future.state.logit_processor_kwargs.get("seed") for future in requests_with_new_token
        ]
        fresh = torch.randint(0, 1 << 32, (len(request_seeds),), dtype=torch.int64, device="cpu").tolist()
        bits = [
            new if seed is None else (seed >> self._shift) & 0xFFFFFFFF
            for seed, new in zip(request_seeds, fresh, strict=True)
        ]
        return torch.tensor(bits, dtype=torch.int64, device="cpu").to(torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Keep the bits of the rows for the drawing processor."""
        self.bits = tensor_arg[: scores.shape[0]]
        return scores


class Draw(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Brings each request's position to the device, and draws."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(
        self,
        plans: StepPlan,
        sampler: str | Sampler | None,
        device: torch.device,
        low: SeedHalf,
        high: SeedHalf,
    ) -> None:
        self._plan, self._low, self._high = plans, low, high
        params = plans.params
        need = Need(filter_orders=(params.filter_order,), graph_safe=device.type == "cuda")
        self._sampler = load_sampler(sampler, device, need)
        self._one = SamplingMetadata.from_params([params], device=device)
        values = {field.name: getattr(self._one, field.name) for field in fields(self._one)}
        self._columns: dict[str, Any] = {
            name: value for name, value in values.items() if isinstance(value, Tensor)
        }
        self._filters = dict(self._one.filters or {})

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Fill the tensor [N] int32 in use before the first request."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        """Return the position of the last input token of each request in this step, [requests] int32."""
        positions = [future.state.position_offset - 1 for future in requests_with_new_token]
        return torch.tensor(positions, dtype=torch.int32, device="cpu")

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Return scores [N, V] with probability 1 on the token drawn in each row."""
        rows = scores.shape[0]
        seed = (self._high.bits.to(torch.int64) << 32) | (self._low.bits.to(torch.int64) & 0xFFFFFFFF)
        metadata = replace(
            self._one,
            **{name: tensor.expand(rows) for name, tensor in self._columns.items()},
            filters={name: tensor.expand(rows) for name, tensor in self._filters.items()} or None,
            seed=seed,
            positions=tensor_arg[:rows].to(torch.int64),
            facts=replace(self._one.facts, any_seeded=True, all_seeded=True),
            row_kinds=None,
        )
        narrowed = self._plan.narrowing(None, scores)
        return one_hot_scores(scores, self._sampler.sample(narrowed, metadata).token_ids)
