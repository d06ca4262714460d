"""Replaces transformers' processors of biases, penalties and forbidden tokens by ``process_logits``.

The list keeps its order: a stretch of served processors, one behind the other, becomes one processor at their place.
In a stretch the biases come before the penalty, as in ``process_logits``. What sets scores to -inf may stand anywhere
in it, since -inf stays -inf. What needs the order of tokens, a sequence of several ids, is left to transformers: it
looks for the ids before the last one in prompt and padding too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tokendraw import InvalidParameterError, RequestSlots, SamplerUnavailableError, SamplingParams
from tokendraw_transformers._loading import loaded_processor

_BIASES = (SequenceBiasLogitsProcessor, NoBadWordsLogitsProcessor)
SERVED = (
    *_BIASES,
    RepetitionPenaltyLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
"""Processors that tokendraw replaces, by their exact types."""
AHEAD = 1024
"""Tokens that there is room for in the slots; then they are made anew."""


def with_edits(prepared: Iterable[Any]) -> LogitsProcessorList:
    """Replace each stretch of served processors by one that calls ``process_logits``."""
    stretches: list[list[Any]] = []
    for processor in prepared:
        last = stretches[-1] if stretches else []
        if _is_served(processor) and last and _is_served(last[0]) and _may_follow(last, processor):
            last.append(processor)
        else:
            stretches.append([processor])
    return LogitsProcessorList(
        EditProcessor(stretch) if _is_served(stretch[0]) else stretch[0] for stretch in stretches
    )


def _is_served(processor: Any) -> bool:
    if type(processor) in _BIASES:
        return all(len(sequence) == 1 for sequence in processor.sequence_bias)
    return type(processor) in SERVED


def _may_follow(stretch: Sequence[Any], processor: Any) -> bool:
    """Tell whether ``process_logits``, which has one of each kind, edits in this order."""
    kinds = {type(other) for other in stretch}
    late = type(processor) is SequenceBiasLogitsProcessor and RepetitionPenaltyLogitsProcessor in kinds
    return type(processor) not in kinds and not late


class EditProcessor(LogitsProcessor):  # type: ignore[misc]
    """Does what a stretch of transformers' processors does, by ``process_logits``.

    The slots hold a request a row. They are made at the first call, and follow the tokens from then on. What tokendraw
    refuses goes to the processors themselves, which do it or say in their own words why not.
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
        self._rows = torch.empty(0)
        self._length = self._full_at = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return edited scores; those that are given stay as they are.

        :param input_ids: [B, L].
        :param scores: [B, V].
        """
        if self._is_refused or scores.dtype is not torch.float32:  # transformers rounds after each processor
            return self._left_to_transformers(input_ids, scores)
        try:
            self._follow(input_ids, scores)
        except (InvalidParameterError, SamplerUnavailableError):
            self._is_refused = True
            return self._left_to_transformers(input_ids, scores)
        edited = scores.detach().clone(memory_format=torch.contiguous_format)
        self._processor.process(edited, self._slots, self._rows)
        return edited

    def _left_to_transformers(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        found: Tensor = self.stretch(input_ids, scores)
        return found

    def _follow(self, input_ids: Tensor, scores: Tensor) -> None:
        """Bring the slots up to the tokens of this step."""
        count, length = input_ids.shape
        slots = self._slots
        if slots is not None and slots.device == scores.device and len(self._rows) == count:
            if length == self._length or not self._follows:
                return
            if length == self._length + 1 and length <= self._full_at:
                new = input_ids[:, -1].to(scores.device)
                known = (new >= 0) & (new < slots.vocab_size)  # padding may be any id
                slots.append(self._rows, new.masked_fill(~known, -1))
                self._length = length
                return
        self._begin(input_ids, scores)

    def _begin(self, input_ids: Tensor, scores: Tensor) -> None:
        """Make slots that hold what the rows have now."""
        (count, length), vocab_size = input_ids.shape, scores.shape[1]
        params = self._params(length, vocab_size)
        known = _histories(self._kinds.get(RepetitionPenaltyLogitsProcessor), input_ids, vocab_size)
        words = params.bad_words or ()
        self._processor = loaded_processor(scores.device)
        slots = RequestSlots(
            num_slots=count,
            max_tokens=length + AHEAD if self._follows else 1,
            vocab_size=vocab_size,
            device=scores.device,
            max_bias=max(1, len(params.logit_bias or ())),
            max_stop_ids=max(1, len(params.stop_token_ids or ())),
            max_bad_words=max(1, len(words)),
            max_bad_word_len=1,
        )
        for row, history in enumerate(known):
            slots.add(row, params, prompt_token_ids=history)
        self._slots, self._length, self._full_at = slots, length, length + AHEAD
        self._rows = torch.arange(count, device=scores.device)

    def _params(self, length: int, vocab_size: int) -> SamplingParams:
        """Say what the processors do, for rows of so many tokens.

        :raises InvalidParameterError: an id is outside the vocabulary, or a value is not finite.
        """
        kinds, bias, forbidden = self._kinds, {}, set()
        for kind in _BIASES:
            given: Mapping[tuple[int, ...], float] = kinds[kind].sequence_bias if kind in kinds else {}
            for (token,), value in given.items():
                if value == -math.inf:
                    forbidden.add(int(token))
                else:
                    bias[int(token)] = float(value)
        if SuppressTokensLogitsProcessor in kinds:
            forbidden |= set(_within(kinds[SuppressTokensLogitsProcessor].suppress_tokens, vocab_size))
        penalty, least = (
            kinds.get(RepetitionPenaltyLogitsProcessor),
            kinds.get(MinNewTokensLengthLogitsProcessor),
        )
        held_back = 0 if least is None else least.prompt_length_to_skip + least.min_new_tokens - length
        return SamplingParams(
            repetition_penalty=1.0 if penalty is None else penalty.penalty,
            logit_bias=bias or None,
            bad_words=[[token] for token in sorted(forbidden)] or None,
            min_tokens=max(0, held_back),
            stop_token_ids=None if least is None else _within(least.eos_token_id, vocab_size),
        )


def _within(ids: Tensor, vocab_size: int) -> list[int]:
    """Return the ids of the vocabulary: transformers passes over others."""
    return [token for token in ids.tolist() if 0 <= token < vocab_size]


def _histories(penalty: Any, input_ids: Tensor, vocab_size: int) -> list[list[int]]:
    """Return the tokens that each row is penalized for: not its padding. Waits for the device if there is a penalty.

    :raises InvalidParameterError: more is to be passed over than there is, so some of what comes too.
    """
    rows = len(input_ids)
    if penalty is None:
        return [[]] * rows
    skipped = getattr(penalty, "prompt_ignore_length", None)
    each = skipped.tolist() if isinstance(skipped, Tensor) else [skipped or 0] * rows
    if len(each) != rows or max(each, default=0) > input_ids.shape[1]:
        raise InvalidParameterError(
            f"'prompt_ignore_length' needs one number of tokens a row, {rows}, each at most {input_ids.shape[1]}, "
            f"found {each}. Leave it out."
        )
    return [
        [token for token in row[first:] if 0 <= token < vocab_size]
        for row, first in zip(input_ids.tolist(), each, strict=True)
    ]
