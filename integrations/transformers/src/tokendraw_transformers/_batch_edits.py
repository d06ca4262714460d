"""Edits of scores in continuous batching: stretches of transformers' processors, done by ``process_logits``.

Each request has a slot while transformers works on it. A request that left a batch, as in a preemption, gives its slot
to another and comes back with its whole history. All tokens stand in the output of a slot, prompts included,
since transformers treats both alike: bad words begin in prompts, and lengths count prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
)
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from tokendraw import SamplingParams
from tokendraw_transformers import _edits, _warpers
from tokendraw_transformers._edits import edit_params, slots_for, with_stretches
from tokendraw_transformers._loading import load_processor

_SUPPORTED = (*_edits.SUPPORTED, MinLengthLogitsProcessor, SuppressTokensAtBeginLogitsProcessor)
_BATCH_SAFE = (InfNanRemoveLogitsProcessor, LogitNormalization, *_warpers.SUPPORTED, *_warpers.WARPER_FIELDS)
"""Processors that read a row of scores and no tokens, so transformers' processors serve any batch."""


def is_edit(processor: Any) -> bool:
    """Return whether ``process_logits`` replaces a processor, given the whole sequence."""
    if type(processor) in _edits.BIASES:
        biases = processor.sequence_bias.items()
        return all(len(sequence) == 1 or value == -math.inf for sequence, value in biases)
    return type(processor) in _SUPPORTED


def is_batch_safe(processor: Any) -> bool:
    """Tell whether a processor of transformers serves any batch."""
    return type(processor) in _BATCH_SAFE


def with_batch_edits(
    prepared: LogitsProcessorList,
    manager: Any,
    num_requests: int,
    max_tokens: int,
    vocab_size: int,
) -> LogitsProcessorList:
    """Replace each stretch of edits by a :class:`BatchEdits`.

    :param manager: of transformers, before it starts.
    :param max_tokens: of the longest sequence.
    """
    batching, device = manager.continuous_batching_config, manager.model.device
    return with_stretches(
        prepared,
        is_edit,
        lambda stretch: BatchEdits(stretch, batching, num_requests, max_tokens, vocab_size, device),
    )


class BatchEdits(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Replaces a stretch of transformers' processors for the requests of a batch."""

    supported_kwargs: dict[str, type] = {"prompt_length": int}  # noqa: RUF012  # as its base class has it
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(
        self,
        stretch: Sequence[Any],
        batching: Any,
        num_requests: int,
        max_tokens: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._kinds = {type(processor): processor for processor in stretch}
        self._batching = batching
        self._vocab_size = vocab_size
        count = min(num_requests, batching.max_requests_per_batch)
        self._unassigned_slot = count
        """A slot without a request, for the rows of a CUDA graph that pad a batch."""
        params = self._params(prompt_length=1)
        self._slots = slots_for(params, count + 1, max_tokens, vocab_size, device)
        self._slots.add(0, params)
        self._slots.captured_edits = self._slots.facts  # for all requests
        self._slots.remove(0)
        self._processor = load_processor(device)
        self._free = list(range(count))
        self._requests: dict[str, tuple[int, int]] = {}
        """Slot and number of tokens of each request that has a slot, the longest unused first."""

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        """Fill the tensor [N] int32 in use before the first request."""
        int32_tensor.fill_(self._unassigned_slot)

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        """Bring the slots up to the tokens of this step, and return the slot of each row, [rows] int32."""
        states = [future.state for future in requests_with_new_token]
        edited_states = [state for state in states if "prompt_length" in state.logit_processor_kwargs]
        for state in edited_states:  # requests of this batch keep their slots
            if state.request_id in self._requests:
                self._requests[state.request_id] = self._requests.pop(state.request_id)
        new: dict[int, int] = {}
        for state in edited_states:
            self._follow(state, new)
        if new:
            self._slots.append([*new], [*new.values()])
        if self._slots.device.type == "cuda":
            torch.cuda.current_stream(
                self._slots.device
            ).synchronize()  # transformers computes on another stream
        rows = [self._requests.get(state.request_id, (self._unassigned_slot, 0))[0] for state in states]
        padding = self._batching.max_requests_per_batch - len(rows)
        return torch.tensor(rows + [self._unassigned_slot] * padding, dtype=torch.int32, device="cpu")

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Edit scores [N, V] in place, and return them."""
        edited: Tensor = self._processor.process(scores, self._slots, tensor_arg[: scores.shape[0]])
        return edited

    def _follow(self, state: Any, new: dict[int, int]) -> None:
        """Bring the slot of a request up to its tokens, except for a single new token, left for the next append.

        :param new: receives single new tokens by slot.
        """
        tokens = [*state.initial_tokens, *state.generated_tokens]
        if state.request_id in self._requests:
            slot, known = self._requests.pop(state.request_id)
        else:
            slot, known = self._empty_slot(), 0
        if known == len(tokens) - 1 and known:
            new[slot] = tokens[-1]
        elif known != len(tokens):
            if known:
                self._slots.remove(slot)
            params = self._params(state.logit_processor_kwargs["prompt_length"])
            self._slots.add(slot, params, output_token_ids=tokens)
        self._requests[state.request_id] = slot, len(tokens)

    def _empty_slot(self) -> int:
        """Return a slot without a request, if need be by evicting a request outside of the batch."""
        if self._free:
            return self._free.pop()
        slot, _ = self._requests.pop(next(iter(self._requests)))
        self._slots.remove(slot)
        return slot

    def _params(self, prompt_length: int) -> SamplingParams:
        return edit_params(self._kinds, self._vocab_size, prompt_length=prompt_length, num_counted=0)
