"""The callable for ``custom_generate``: runs transformers' decoding loop with its last step replaced, unchanged itself.

``GenerationMixin._sample`` processes the scores [B, V], records them, and takes ``torch.argmax(scores, dim=-1)`` for
the tokens where it does not sample. So the list of processors draws at its end, and returns the scores as a tensor
whose argmax is the drawn tokens. The loop takes them without another pass over the vocabulary.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerationMode

from tokendraw import InvalidParameterError, Sampler
from tokendraw_transformers._drawing import BatchDrawer, stacked, with_draws
from tokendraw_transformers._errors import (
    CALLER_ARGUMENTS,
    InvalidRowsWarning,
    SeedsUnusedWarning,
    TransformersVersionError,
    warn,
)
from tokendraw_transformers._lists import StepPlan, plan, with_edits


class Row(int):
    """The index of a row in its batch, and its prompt: the argument of a callable ``seeds``.

    It is an integer: ``seeds=lambda row: 100 + row``. In a pipeline the index starts anew with each batch, so
    tell prompts apart by ``prompt_ids`` there.
    """

    prompt_ids: tuple[int, ...]
    """Token ids of the row's prompt, without padding; empty where the model is given embeddings."""
    repeat: int
    """Number of rows before it in the batch with the same prompt, as ``num_return_sequences`` makes them."""

    @classmethod
    def of(cls, index: int, prompt_ids: tuple[int, ...], repeat: int) -> Row:
        row = cls(index)
        row.prompt_ids, row.repeat = prompt_ids, repeat
        return row


Seeds: TypeAlias = int | Sequence[int | None] | Tensor | Callable[[Row], int | None] | None


def derived_seed(base: int, token_ids: Iterable[int], repeat: int = 0) -> int:
    """Derive the seed of a row from a base seed, as ``seeds=base`` does.

    It is the first eight bytes, little-endian, of the SHA-256 of ``base`` modulo 2**64, ``repeat`` and the token ids,
    each as eight little-endian bytes. So it depends on the prompt, and on no other prompt of the batch.

    :param base: an integer in [-2**63, 2**64).
    :param token_ids: of the row's prompt, without padding.
    :param repeat: how many rows before it in the batch have the same prompt.
    :returns: an integer in [0, 2**64).
    :raises InvalidParameterError: a ValueError: ``base`` is no such integer.
    """
    if isinstance(base, bool) or not isinstance(base, int) or not -(2**63) <= base < 2**64:
        raise InvalidParameterError(
            f"'seeds' needs a base seed in [-2**63, 2**64), found {base!r}. Pass an integer in that range."
        )
    words = (base % 2**64, repeat, *token_ids)
    text = b"".join(word.to_bytes(8, "little") for word in words)
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def row_seeds(
    seeds: Any, rows: int, prompts: Callable[[], Sequence[Sequence[int]]], *, subject: str
) -> list[int | None]:
    """Find the seed of each row. Listed seeds, and those that a callable returns, are checked when the batch is built.

    :param prompts: returns the token ids of each row's prompt, without padding; called only if they are needed.
    :param subject: what a row is, in a message.
    """
    if seeds is None:
        return [None] * rows
    if hasattr(seeds, "tolist"):  # a tensor, an array, a scalar of numpy
        seeds = seeds.tolist()
    if isinstance(seeds, int):
        return [derived_seed(seeds, row.prompt_ids, row.repeat) for row in _rows_of_prompts(prompts())]
    if callable(seeds):
        return [seeds(row) for row in _rows_of_prompts(prompts())]
    if not isinstance(seeds, Sequence) or isinstance(seeds, (str, bytes)):
        raise InvalidParameterError(
            f"'seeds' needs an integer, one entry {subject}, or a callable of the row, found a "
            f"{type(seeds).__name__}. Pass one of these."
        )
    if len(seeds) != rows:
        raise InvalidParameterError(
            f"'seeds' needs one entry {subject}, found {len(seeds)}. Pass a list of integers or None."
        )
    return list(seeds)


def _rows_of_prompts(prompts: Sequence[Sequence[int]]) -> list[Row]:
    previous: Counter[tuple[int, ...]] = Counter()
    rows = []
    for index, prompt in enumerate(map(tuple, prompts)):
        rows.append(Row.of(index, prompt, previous[prompt]))
        previous[prompt] += 1
    return rows


_ARGMAX = (torch.argmax, Tensor.argmax)


class DrawnScores(Tensor):
    """Scores [B, V] with the drawn tokens as the result of their first argmax.

    It shares the memory of the scores. For any other function, and from the second argmax on, it is a plain tensor.
    """

    token_ids: Tensor | None

    @classmethod
    def of(cls, scores: Tensor, token_ids: Tensor) -> DrawnScores:
        drawn_scores = scores.as_subclass(cls)
        drawn_scores.token_ids = token_ids
        return drawn_scores

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _ARGMAX and isinstance(args[0], cls) and args[0].token_ids is not None:
            token_ids, args[0].token_ids = args[0].token_ids, None
            return token_ids
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class DrawingProcessors(LogitsProcessorList):  # type: ignore[misc]
    """The processors that transformers keeps, and the draw behind them, recorded."""

    def __init__(self, plan: StepPlan, rows: BatchDrawer, offset: Tensor, *, records_scores: bool) -> None:
        super().__init__(with_edits(plan.processors))
        self._plan, self._rows, self._offset = plan, rows, offset
        self._records_scores = records_scores
        self._last: DrawnScores | None = None
        self.steps: list[dict[str, Any]] = []
        """As :meth:`BatchDrawer.fields` returns them."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Process scores [B, V] and draw; return them as :class:`DrawnScores`, warped if scores are recorded."""
        self.check_taken()
        scores = super().__call__(input_ids, scores, **kwargs)
        narrowed = self._plan.narrowing(input_ids, scores)
        output = self._rows.draw(narrowed, self._offset + input_ids.shape[1])
        self.steps.append(self._rows.fields(narrowed, output))
        recorded_scores = self._plan.recorded(input_ids, scores) if self._records_scores else scores
        self._last = DrawnScores.of(recorded_scores, output.token_ids)
        return self._last

    def check_taken(self) -> None:
        """Check that the loop took the tokens of the last step.

        :raises TransformersVersionError: it took others, in a way that the adapter does not know.
        """
        if self._last is not None and self._last.token_ids is not None:
            raise TransformersVersionError(
                "'GenerationMixin._sample' needs to take its tokens by torch.argmax, found that it took others. "
                "Install a transformers that tokendraw-transformers was tested with, or leave out custom_generate."
            )


class RecordingStoppingCriteria(StoppingCriteriaList):  # type: ignore[misc]
    """Stopping criteria with a record of the rows stopped at each step."""

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        super().__init__(criteria)
        self.stopped: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        stopped: Tensor = super().__call__(input_ids, scores, **kwargs)
        self.stopped.append(stopped)
        return stopped

    def drawn_steps(self, steps: int) -> Tensor:
        """Return the steps [B, steps] bool at which rows drew a token instead of padding."""
        stopped = torch.stack(self.stopped[:steps], dim=1)
        if not any(hasattr(criterion, "eos_token_id") for criterion in self):
            # transformers fills rows up only where there is an end of sequence
            return torch.ones_like(stopped)
        stops_before = stopped.cumsum(dim=1) - stopped.to(torch.int64)
        return stops_before == 0


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
    given: dict[str, Any] = {
        "seeds": seeds,
        "sampler": sampler,
        "logprobs": logprobs,
        "logprobs_mode": logprobs_mode,
    }
    given |= {"kept_ids": kept_ids, "entropy": entropy}
    # the GenerationConfig keeps entries that are unknown to transformers
    seeds, sampler, logprobs, logprobs_mode, kept_ids, entropy = (
        getattr(generation_config, name, None) if value is None else value for name, value in given.items()
    )
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
    draws = DrawingProcessors(
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
        logits_processor=draws,
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
