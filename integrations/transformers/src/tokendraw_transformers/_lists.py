"""Divides the list of processors that ``generate`` prepares between transformers and tokendraw.

The list has processors, then the warpers temperature, top-h, top-k, top-p, min-p, typical-p, epsilon and eta, then
perhaps a watermark, then perhaps the normalisation, which changes no draw. The warpers are taken from its end, as
sampling parameters with their values. A processor behind a warper has to see the warper's result, so then the warper
stays in the list: slower, and the same distribution.

transformers applies min-p after top-p; tokendraw applies it before top-k and top-p. It is relative to the largest
probability, so with top-k alone both are the same. With top-p, whose mass min-p must not reduce, the order "joint" has
top-p count the whole row; with all three the row is first cut to its k largest.

The last three look at the probabilities of what the warpers before left, renormalised. tokendraw's floors look at the
whole row, and its typical-p stands before top-p: :data:`_TAKEN` says beside which warpers both are the same. Beside
others, the warpers before stay in the list.

Processors of biases, penalties and forbidden tokens become calls of ``process_logits``: a stretch of served ones, one
behind the other, becomes one processor at their place. In a stretch the biases come before the penalty, as in
``process_logits``. Processors that set scores to -inf may stand anywhere in it, since -inf stays -inf. In ``generate``,
transformers handles sequences of several ids: it also looks for their first ids in prompt and padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from tokendraw import InvalidParameterError, RequestSlots, SamplerUnavailableError, SamplingParams
from tokendraw_transformers._drawing import load_processor

WARPERS: dict[type, str] = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
}
"""Warpers that tokendraw replaces beside each other, in the order in which transformers applies them, and their
attributes, which are fields of :class:`SamplingParams` too."""


class _Taken(NamedTuple):
    """The replacement of a warper beside few others."""

    params: Callable[[Any], dict[str, Any]]
    """Makes fields of :class:`SamplingParams` from the warper."""
    beside: tuple[type, ...]
    """Warpers beside which both keep the same tokens."""


_TAKEN: dict[type, _Taken] = {
    TypicalLogitsWarper: _Taken(
        lambda warper: {"typical_p": warper.mass},
        (TemperatureLogitsWarper, TopKLogitsWarper, MinPLogitsWarper),
    ),
    EpsilonLogitsWarper: _Taken(
        lambda warper: {"filters": {"epsilon_cutoff": warper.epsilon}}, (TemperatureLogitsWarper,)
    ),
    EtaLogitsWarper: _Taken(
        lambda warper: {"filters": {"eta_cutoff": float(warper.epsilon)}}, (TemperatureLogitsWarper,)
    ),
}
"""Warpers that tokendraw replaces beside some, in the order in which transformers applies them, behind the others."""
_ORDER = (*WARPERS, *_TAKEN)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The division of a step between transformers' processors and tokendraw."""

    processors: LogitsProcessorList
    """Processors of transformers, in order; they run first."""
    params: SamplingParams
    """Parameters for tokendraw's draw from the processed scores."""
    narrowing: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    """Processors for the scores of the draw alone."""
    recorded: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    """Processors for ``output_scores``."""


def plan(prepared: Sequence[Any], *, do_sample: bool) -> StepPlan:
    if not do_sample:
        return StepPlan(LogitsProcessorList(prepared), SamplingParams(temperature=0.0))
    end = len(prepared)
    if end and type(prepared[-1]) is LogitNormalization:
        end -= 1
    start, index = end, len(_ORDER)
    while start and (previous := _warper_index(prepared[start - 1])) is not None and previous < index:
        start, index = start - 1, previous
    while not _is_expressible(prepared[start:end]):
        start += 1
    warpers = {type(processor): processor for processor in prepared[start:end]}
    params, narrowing = _sampling_params(warpers)
    return StepPlan(
        processors=LogitsProcessorList(prepared[:start]),
        params=params,
        narrowing=LogitsProcessorList(narrowing),
        recorded=LogitsProcessorList(prepared[start:]),
    )


def _is_expressible(warpers: Sequence[Any]) -> bool:
    """Whether sampling parameters mean the same as these successive warpers."""
    kinds = {type(warper) for warper in warpers}
    return all(kinds <= {kind, *_TAKEN[kind].beside} for kind in kinds if kind in _TAKEN)


def _warper_index(processor: Any) -> int | None:
    """Return the index of a warper in ``_ORDER``; None if it is unsupported, or built with another behaviour."""
    if type(processor) not in _ORDER:
        return None
    if getattr(processor, "filter_value", float("-inf")) != float("-inf"):
        return None
    # top-k already includes min_tokens_to_keep
    if type(processor) is not TopKLogitsWarper and getattr(processor, "min_tokens_to_keep", 1) != 1:
        return None
    return _ORDER.index(type(processor))


def _sampling_params(warpers: dict[type, Any]) -> tuple[SamplingParams, list[Any]]:
    fields = {name: getattr(warpers[kind], name) for kind, name in WARPERS.items() if kind in warpers}
    if fields.get("top_p", 1.0) <= 0:  # transformers keeps one token
        fields |= {"top_p": 1.0, "temperature": 0.0}
    for kind, taken in _TAKEN.items():
        if kind in warpers:
            fields |= taken.params(warpers[kind])
    params = SamplingParams(**fields)
    if params.min_p == 0 or params.top_p == 1:
        return params, []
    narrowing = [warpers[TopKLogitsWarper]] if params.top_k else []
    return replace(params, filter_order="joint"), narrowing


BIASES = (SequenceBiasLogitsProcessor, NoBadWordsLogitsProcessor)
EDITS = (
    *BIASES,
    RepetitionPenaltyLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
"""Processors that tokendraw replaces, by their exact types."""
HEADROOM_TOKENS = 1024
"""Room in the slots, in tokens; full slots are made anew."""


def with_edits(prepared: Iterable[Any]) -> LogitsProcessorList:
    stretches: list[list[Any]] = []
    for processor in prepared:
        last = stretches[-1] if stretches else []
        if _is_supported(processor) and last and _is_supported(last[0]) and _may_follow(last, processor):
            last.append(processor)
        else:
            stretches.append([processor])
    return LogitsProcessorList(
        EditProcessor(stretch) if _is_supported(stretch[0]) else stretch[0] for stretch in stretches
    )


def _is_supported(processor: Any) -> bool:
    if type(processor) in BIASES:
        return all(len(sequence) == 1 for sequence in processor.sequence_bias)
    return type(processor) in EDITS


def _may_follow(stretch: Sequence[Any], processor: Any) -> bool:
    """Return whether ``process_logits``, with a processor of each kind, edits in this order."""
    kinds = {type(other) for other in stretch}
    late = type(processor) is SequenceBiasLogitsProcessor and RepetitionPenaltyLogitsProcessor in kinds
    return type(processor) not in kinds and not late


class EditProcessor(LogitsProcessor):  # type: ignore[misc]
    """Replaces a stretch of transformers' processors by ``process_logits``.

    The slots hold a request a row. They are made at the first call, and follow the tokens from then on. Requests
    refused by tokendraw go to transformers' processors, which edit or raise.
    """

    def __init__(self, stretch: Sequence[Any]) -> None:
        self.stretch = LogitsProcessorList(stretch)
        self._kinds = {type(processor): processor for processor in stretch}
        self._follows = bool(
            {RepetitionPenaltyLogitsProcessor, MinNewTokensLengthLogitsProcessor} & set(self._kinds)
        )
        self._is_refused = False
        self._slots: RequestSlots | None = None
        self._processor: Any = None
        self._rows = torch.empty(0, dtype=torch.int64, device="cpu")
        self._length = self._max_length = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return edited scores [B, V], in a new tensor."""
        if self._is_refused or scores.dtype is not torch.float32:  # transformers rounds after each processor
            return self._edit_by_transformers(input_ids, scores)
        try:
            self._follow(input_ids, scores)
        except (InvalidParameterError, SamplerUnavailableError):
            self._is_refused = True
            return self._edit_by_transformers(input_ids, scores)
        edited = scores.detach().clone(memory_format=torch.contiguous_format)
        self._processor.process(edited, self._slots, self._rows)
        return edited

    def _edit_by_transformers(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        edited: Tensor = self.stretch(input_ids, scores)
        return edited

    def _follow(self, input_ids: Tensor, scores: Tensor) -> None:
        count, length = input_ids.shape
        slots = self._slots
        if slots is not None and slots.device == scores.device and len(self._rows) == count:
            if length == self._length or not self._follows:
                return
            if length == self._length + 1 and length <= self._max_length:
                new = input_ids[:, -1].to(scores.device)
                known = (new >= 0) & (new < slots.vocab_size)  # padding may be any id
                slots.append(self._rows, new.masked_fill(~known, -1))
                self._length = length
                return
        self._begin(input_ids, scores)

    def _begin(self, input_ids: Tensor, scores: Tensor) -> None:
        (count, length), vocab_size = input_ids.shape, scores.shape[1]
        params = _edit_params(self._kinds, vocab_size, length)
        known = _histories(self._kinds.get(RepetitionPenaltyLogitsProcessor), input_ids, vocab_size)
        self._processor = load_processor(scores.device)
        words = params.bad_words or ()
        slots = RequestSlots(
            num_slots=count,
            max_tokens=length + HEADROOM_TOKENS if self._follows else 1,
            vocab_size=vocab_size,
            device=scores.device,
            max_bias=max(1, len(params.logit_bias or ())),
            max_stop_ids=max(1, len(params.stop_token_ids or ())),
            max_bad_words=max(1, len(words)),
            max_bad_word_len=max([1, *map(len, words)]),
        )
        for row, history in enumerate(known):
            slots.add(row, params, prompt_token_ids=history)
        self._slots, self._length, self._max_length = slots, length, length + HEADROOM_TOKENS
        self._rows = torch.arange(count, device=scores.device)


def _edit_params(kinds: Mapping[type, Any], vocab_size: int, length: int) -> SamplingParams:
    """Express the processors of a stretch as parameters of a request, whose slot counts no token as output.

    :param length: tokens of the request so far.
    """
    bias: dict[int, float] = {}
    forbidden: set[tuple[int, ...]] = set()
    for kind in BIASES:
        biases: Mapping[tuple[int, ...], float] = kinds[kind].sequence_bias if kind in kinds else {}
        for sequence, value in biases.items():
            if value == -math.inf:
                forbidden.add(tuple(map(int, sequence)))
            else:
                bias[int(sequence[0])] = float(value)
    if SuppressTokensLogitsProcessor in kinds:
        tokens = kinds[SuppressTokensLogitsProcessor].suppress_tokens
        forbidden |= {(token,) for token in _ids_in_vocabulary(tokens, vocab_size)}
    penalty = kinds.get(RepetitionPenaltyLogitsProcessor)
    delay = kinds.get(MinNewTokensLengthLogitsProcessor)
    allowed_from = 0 if delay is None else delay.prompt_length_to_skip + delay.min_new_tokens
    return SamplingParams(
        repetition_penalty=1.0 if penalty is None else penalty.penalty,
        logit_bias=bias or None,
        bad_words=[list(word) for word in sorted(forbidden)] or None,
        min_tokens=max(0, allowed_from - length),
        stop_token_ids=None if delay is None else _ids_in_vocabulary(delay.eos_token_id, vocab_size),
    )


def _ids_in_vocabulary(ids: Tensor, vocab_size: int) -> list[int]:
    return [token for token in ids.tolist() if 0 <= token < vocab_size]


def _histories(penalty: Any, input_ids: Tensor, vocab_size: int) -> list[list[int]]:
    """Return the penalized tokens of each row, without padding. Waits for the device if there is a penalty."""
    rows = len(input_ids)
    if penalty is None:
        return [[]] * rows
    skipped = getattr(penalty, "prompt_ignore_length", None)
    skipped_lengths = skipped.tolist() if isinstance(skipped, Tensor) else [skipped or 0] * rows
    if len(skipped_lengths) != rows or max(skipped_lengths, default=0) > input_ids.shape[1]:
        raise InvalidParameterError(
            f"'prompt_ignore_length' needs one number of tokens a row, {rows}, each at most {input_ids.shape[1]}, "
            f"found {skipped_lengths}. Leave it out."
        )
    return [
        [token for token in row[first:] if 0 <= token < vocab_size]
        for row, first in zip(input_ids.tolist(), skipped_lengths, strict=True)
    ]
