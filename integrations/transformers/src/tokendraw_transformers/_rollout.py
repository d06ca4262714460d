"""Completions for TRL's ``GRPOTrainer``: its ``rollout_func``, marked as experimental by TRL 1.x.

TRL hands over the prompts of this process, each as often as it wants completions of it, and the trainer. It wants a
dict of lists back, with an entry a prompt: ``prompt_ids``, ``completion_ids`` and ``logprobs``; whatever else is in it
goes to the reward functions by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tokendraw import InvalidParameterError
from tokendraw.plugin import PAD_TOKEN_ID
from tokendraw_transformers._generate import derived_seed, generate, row_seeds


def rollout_func(
    *,
    seed: int | None = None,
    sampler: str | None = None,
    kept_ids: int | None = None,
    entropies: bool = False,
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Make a ``rollout_func`` for ``trl.GRPOTrainer(..., rollout_func=rollout_func(seed=7))``.

    It draws with the settings of the trainer (temperature, top-k, top-p, min-p, penalties, length), by ``generate`` of
    the model that is trained. Each call has a base seed, ``derived_seed(seed, [global step, process])``, and each
    completion ``derived_seed`` of that and its prompt. Besides what TRL asks for there are ``seeds``: with the seed and
    the weights of then, :func:`generate` draws the same completion again.

    ``logprobs`` are those after the temperature and before the filters, which TRL compares with its own.

    :param seed: an integer in [-2**63, 2**64); None: one from torch's generator in each call.
    :param sampler: name of a tokendraw plugin; None: the best for the device of the model.
    :param kept_ids: at most so many of the ids that the filters kept are returned for each token, as ``kept_ids``, with
        their whole number in ``kept_counts``: the mask under which the token was drawn. None: none.
    :param entropies: whether to return ``entropies`` of each token, in nats, at the temperature and before the filters.
    :returns: a function of the prompts, texts or conversations, and the trainer. It raises
        :class:`InvalidParameterError`, a ValueError, where the trainer generates with vLLM, shards its model with
        FSDP or has tools.
    """
    if seed is not None:
        derived_seed(seed, ())  # refuses what is no seed

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        _check(trainer)
        base = int(torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")) if seed is None else seed
        base = derived_seed(base, [trainer.state.global_step, trainer.accelerator.process_index])
        prompt_ids = _prompt_ids(prompts, trainer)
        seeds = row_seeds(base, len(prompt_ids), lambda: prompt_ids, subject="a prompt")
        completed = _complete(
            prompt_ids, seeds, trainer, sampler=sampler, kept_ids=kept_ids, entropy=entropies
        )
        return {"prompt_ids": prompt_ids, **completed, "seeds": list(seeds)}

    return rollout


def _check(trainer: Any) -> None:
    needed = "'rollout_func' of tokendraw needs"
    if getattr(trainer, "use_vllm", False):
        raise InvalidParameterError(
            f"{needed} a trainer with use_vllm=False, found True. Set use_vllm=False."
        )
    if getattr(trainer, "is_fsdp_enabled", False):
        raise InvalidParameterError(
            f"{needed} a model that lies whole on each device, found one that FSDP shards. Use DDP or DeepSpeed, or "
            "leave out rollout_func."
        )
    if getattr(trainer, "tools", None):
        raise InvalidParameterError(
            f"{needed} a trainer without tools, found {len(trainer.tools)}: TRL generates what follows a tool's answer "
            "itself, without log-probabilities. Leave out tools, or rollout_func."
        )


def _prompt_ids(prompts: Sequence[Any], trainer: Any) -> list[list[int]]:
    """Return the token ids of each prompt as TRL makes them: texts tokenized, conversations by the chat template."""
    processing = trainer.processing_class
    if isinstance(prompts[0], str):
        ids = processing(text=list(prompts))["input_ids"]
    else:
        ids = processing.apply_chat_template(
            conversation=list(prompts),
            chat_template=getattr(trainer, "chat_template", None),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **(getattr(trainer, "chat_template_kwargs", None) or {}),
        )["input_ids"]
    return [list(prompt) for prompt in ids]


def _complete(
    prompt_ids: Sequence[Sequence[int]],
    seeds: Sequence[int | None],
    trainer: Any,
    **options: Any,
) -> dict[str, list[Any]]:
    """Draw a completion for each prompt: its token ids, including an end of sequence, and what belongs to them."""
    from trl.models import unwrap_model_for_generation

    config = copy.deepcopy(trainer.generation_config)
    config.return_dict_in_generate = True
    width, device = max(map(len, prompt_ids)), trainer.accelerator.device
    ids = [[config.pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompt_ids]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompt_ids]
    with unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
        generation_kwargs=trainer.generation_kwargs,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    ) as model:
        out = model.generate(
            input_ids=torch.tensor(ids, dtype=torch.int64, device=device),
            attention_mask=torch.tensor(mask, dtype=torch.int64, device=device),
            generation_config=config,
            custom_generate=generate,
            seeds=seeds,
            logprobs=0,
            logprobs_mode="temperature_logprobs",
            **options,
        )
    rows = [out.row(index) for index in range(len(prompt_ids))]
    completed: dict[str, list[Any]] = {
        "completion_ids": [[token_id for ((token_id, _, _),) in row] for row in rows],
        "logprobs": [[logprob for ((_, logprob, _),) in row] for row in rows],
    }
    details = {"kept_ids": out.kept_token_ids, "kept_counts": out.kept_counts, "entropies": out.entropy}
    for name, values in details.items():
        if values is not None:
            drawn = zip(values.tolist(), rows, strict=True)
            completed[name] = [steps[: len(row)] for steps, row in drawn]
    if kept := completed.get("kept_ids"):
        completed["kept_ids"] = [[[i for i in ids if i != PAD_TOKEN_ID] for ids in row] for row in kept]
    return completed
