"""Edits of logits of the V2 runner's requests: penalties, biases, allowed ids, bad words, least lengths.

vLLM edits a float32 copy of the whole batch. tokendraw edits a float32 copy of the rows that ask for edits alone, with
the same values but for the last bit; the model's logits are not changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendraw import Drafts
from tokendraw.engines import format_error
from tokendraw_vllm import _log, _ranks
from tokendraw_vllm._engine import edit_states
from tokendraw_vllm._v2_mirror import TOKENS_ATTRIBUTE, EditedRows, Mirror, RequestTokens
from tokendraw_vllm._v2_processor import PART, Processor, edits_of


class Edits:
    """Who edits the logits of each request, and tokendraw's edits."""

    def __init__(self, sampler: Any, requests: Any, device: torch.device) -> None:
        """Hold a new sampler of vLLM, which edits all logits until :meth:`open`.

        :param requests: vLLM's ``RequestState``, which has the tokens of the requests.
        """
        self._sampler, self._requests, self._device = sampler, requests, device
        self._states = [
            state for state in getattr(sampler, "logits_processors", ()) if type(state) in edit_states()
        ]
        self.by_vllm = np.zeros(sampler.sampling_states.max_num_reqs, dtype=bool)
        """Requests whose logits vLLM edits by anything but temperature and filters."""
        self._processor: Processor | None = None
        self._mirror: Mirror | None = None

    def open(self, processor: Processor) -> None:
        """Edit the logits of requests that come from now on, where possible."""
        if len(self._states) < len(edit_states()):
            return
        sizes = self._sampler.sampling_states
        try:
            self._mirror = Mirror(
                sizes.max_num_reqs,
                self._requests.max_model_len,
                sizes.vocab_size,
                self._device,
                self._sampler.num_speculative_tokens,
            )
        except Exception as error:
            _ranks.raise_if_several(error)
            _log.log_kept(format_error(error), part=PART)
            return
        self._processor = processor

    def add_request(
        self, slot: int, sampling_params: Any, add: Callable[[], None], can_draw: Callable[[], bool]
    ) -> None:
        """Take the edits of a request, or leave them to vLLM, while vLLM's sampler adds the request.

        vLLM keeps one flag for all edits together. So the parts of the flag that tokendraw may serve are withheld
        during the call and added afterwards.

        :param can_draw: waits for the load of the processor.
        """
        with contextlib.ExitStack() as stack:
            own = [stack.enter_context(withheld_flag(state)) for state in self._states]
            add()
        flags, has_edits = self._sampler.needs_logits_processing, any(map(any, own))
        if self._mirror is not None:
            self._mirror.discard(slot)
        is_taken = has_edits and can_draw() and self._take(slot, sampling_params)
        self.by_vllm[slot] = flags[slot] or (has_edits and not is_taken)
        flags[slot] |= has_edits

    def _take(self, slot: int, sampling_params: Any) -> bool:
        tokens: RequestTokens | None = getattr(self._requests, TOKENS_ATTRIBUTE, None)
        if self._mirror is None or tokens is None or tokens.slot != slot:
            return False
        self._mirror.discard_all_but(self._requests.index_to_req_id)
        edits = edits_of(sampling_params)
        return edits is not None and self._mirror.add(slot, edits, tokens)

    def rows(self, requests: np.ndarray) -> EditedRows | None:
        """Return the rows of a batch of requests that tokendraw edits; None for none."""
        return None if self._mirror is None else self._mirror.rows(requests)

    def follow(
        self, edited: EditedRows | None, input_ids: Tensor, positions: Tensor, lengths: np.ndarray
    ) -> bool:
        """Append the tokens of earlier steps to the histories of edited requests: see :meth:`Mirror.follow`.

        :returns: whether vLLM edits a request from now on that tokendraw edited.
        """
        if self._sampler.num_speculative_tokens > 1:  # any step may have appended several tokens
            return self.catch_up(edited)
        return self._append(edited, lambda mirror, rows: mirror.follow(rows, input_ids, positions, lengths))

    def catch_up(self, edited: EditedRows | None) -> bool:
        """Append the tokens of earlier steps as :meth:`follow` does, from vLLM's own history."""

        def append(mirror: Mirror, rows: EditedRows) -> list[int]:
            mirror.catch_up(rows, self._requests)
            return []

        return self._append(edited, append)

    def _append(self, edited: EditedRows | None, append: Callable[[Mirror, EditedRows], list[int]]) -> bool:
        if self._mirror is None or edited is None:
            return False
        try:
            lost = append(self._mirror, edited)
        except Exception as error:
            self._give_up(error)
            return True
        if lost:
            _log.log_kept("steps of a request were drawn elsewhere, so its tokens are unknown", part=PART)
            self.by_vllm[lost] = True
        return bool(lost)

    def apply(
        self, logits: Tensor, edited: EditedRows, drafts: Callable[[], Drafts] | None = None
    ) -> Tensor | None:
        """Return the edited logits [n, V] of edited rows, in float32 as vLLM's; None after a failure: then vLLM edits.

        :param logits: [rows, V] of the batch. Not changed.
        :param drafts: the rows are those of a verification of these drafts, and all are returned.
        """
        if self._mirror is None or self._processor is None:
            return None
        try:
            rows, mirror, drafted = edited.of(logits), edited.mirror, None
            if drafts is not None:
                rows, mirror, drafted = logits, edited.of_all, drafts()
            copy = torch.empty(rows.shape, dtype=torch.float32, device=rows.device).copy_(rows)
            return self._processor.process(copy, self._mirror.requests, mirror, None, drafted)
        except Exception as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        """Leave the edits of all requests to vLLM."""
        if self._mirror is not None and self._processor is not None:
            _ranks.give_up(PART, self._processor.name, error)
            self.by_vllm[self._mirror.slots] = True
        self._mirror = self._processor = None


@contextlib.contextmanager
def withheld_flag(state: Any) -> Iterator[list[bool]]:
    """Have ``add_request`` of a state of vLLM return False, and yield a list of what it would have returned."""
    original, flags = state.add_request, []

    def add_request(*arguments: Any) -> bool:
        flags.append(bool(original(*arguments)))
        return False

    state.add_request = add_request
    try:
        yield flags
    finally:
        del state.add_request
