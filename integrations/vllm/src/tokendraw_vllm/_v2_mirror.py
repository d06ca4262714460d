"""The requests of the V2 runner that edit their logits, mirrored in tokendraw's slots.

vLLM counts the tokens of a request densely, V entries that every step reads. ``RequestSlots`` know the ids that occur,
so an edit takes work for these alone. vLLM's states stay what vLLM edits with, if tokendraw gives up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokendraw import InvalidParameterError, SamplingParams
from tokendraw_vllm._v2_processor import ALL_LISTS, request_bytes, request_slots

TOKENS_ATTRIBUTE = "_tokendraw_tokens"
"""Attribute of vLLM's ``RequestState`` for the :class:`RequestTokens` of the request that came last."""
MAX_MEMORY_BYTES = 2**30
"""Limit of the memory of all requests with edits."""


class RequestTokens(NamedTuple):
    """The tokens of a request that came last, as vLLM's ``RequestState`` got them."""

    slot: int
    num_prompt: int
    token_ids: list[int]


class EditedRows(NamedTuple):
    """The rows of a batch whose requests edit their logits."""

    rows: slice | Tensor
    """The rows in the batch: a slice where they lie side by side, else [n] int64 on the device."""
    places: np.ndarray
    """[n]: the rows in the batch, on the host."""
    requests: np.ndarray
    """[n]: slots of vLLM, on the host."""
    slots: Tensor
    """[n] int64: slots of vLLM, on the device."""
    mirror: Tensor
    """[n] int64: slots of tokendraw, on the device."""
    of_all: Tensor
    """[requests] int64: slots of tokendraw, that of a request without edits an empty one, on the device."""

    def of(self, values: Tensor) -> Tensor:
        """Return the entries, or rows, of a tensor [rows, ...] of the batch: a view where they lie side by side."""
        return values[self.rows] if isinstance(self.rows, slice) else values.index_select(0, self.rows)

    def put(self, target: Tensor, values: Tensor) -> None:
        """Write the entries, or rows, of a tensor of the batch in place."""
        if isinstance(self.rows, slice):
            target[self.rows].copy_(values)
        else:
            target.index_copy_(0, self.rows, values)


class Mirror:
    """The requests of a sampler of vLLM whose logits tokendraw edits, in tokendraw's slots."""

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        vocab_size: int,
        device: torch.device,
        max_step_tokens: int,
    ) -> None:
        """Allocate the memory of all requests at once, so that vLLM measures the rest.

        :param max_requests: slots of vLLM.
        :param max_tokens: the most tokens of a request, prompt and output together.
        :param max_step_tokens: the most tokens that a step appends to a request.
        """
        self._device = device
        count = max(1, min(max_requests, MAX_MEMORY_BYTES // request_bytes(max_tokens, vocab_size)))
        self.requests = request_slots(count + 1, max_tokens, vocab_size, device)
        self._empty = count
        """Slot of tokendraw that never has a request."""
        self.requests.add(0, ALL_LISTS)
        self.requests.remove(0)
        self._free = list(range(count))
        self._steps = torch.arange(max_step_tokens, device=device)
        self._no_token = torch.full((1,), -1, device=device, dtype=torch.int64)
        self._mirror: dict[int, int] = {}
        """Slot of tokendraw by slot of vLLM."""
        self._num_tokens = np.zeros(max_requests, dtype=np.int64)
        """Tokens of a request in tokendraw's slots, by slot of vLLM."""

    def add(self, slot: int, params: SamplingParams, tokens: RequestTokens) -> bool:
        """Take the request of a slot of vLLM that has none here into tokendraw's slots.

        :returns: False where vLLM has to edit it: no slot is free, or tokendraw takes no such value.
        """
        if not self._free:
            return False
        mirror, ids = self._free[-1], np.asarray(tokens.token_ids, dtype=np.int64)
        try:
            self.requests.add(mirror, params, ids[: tokens.num_prompt], ids[tokens.num_prompt :])
        except InvalidParameterError:
            return False
        self._mirror[slot] = self._free.pop()
        self._num_tokens[slot] = len(ids)
        return True

    def discard(self, slot: int) -> None:
        """Forget the request of a slot of vLLM, if there is one."""
        mirror = self._mirror.pop(slot, None)
        if mirror is not None:
            self.requests.remove(mirror)
            self._free.append(mirror)

    def discard_all_but(self, slots: Any) -> None:
        """Forget requests that vLLM has no more; vLLM's sampler is not told when a request ends.

        :param slots: container of slots of vLLM.
        """
        for slot in [slot for slot in self._mirror if slot not in slots]:
            self.discard(slot)

    @property
    def slots(self) -> list[int]:
        """Slots of vLLM with a request in tokendraw's slots."""
        return list(self._mirror)

    def rows(self, requests: np.ndarray) -> EditedRows | None:
        """Return the rows of a batch of requests that are edited here; None for none."""
        places = [place for place, slot in enumerate(requests.tolist()) if slot in self._mirror]
        if not places:
            return None
        count, edited = len(places), requests[places]
        is_dense = places[-1] - places[0] + 1 == count
        of_all = [self._mirror.get(slot, self._empty) for slot in requests.tolist()]
        on_host = torch.tensor(
            [*places, *edited.tolist(), *(of_all[place] for place in places), *of_all],
            pin_memory=self._device.type == "cuda",
            dtype=torch.int64,
            device="cpu",
        )
        uploaded = on_host.to(self._device, non_blocking=True)
        rows, slots, mirror, of_all_requests = uploaded.split_with_sizes([count, count, count, len(of_all)])
        return EditedRows(
            slice(places[0], places[0] + count) if is_dense else rows,
            np.array(places),
            edited,
            slots,
            mirror,
            of_all_requests,
        )

    def follow(
        self, edited: EditedRows, input_ids: Tensor, positions: Tensor, lengths: np.ndarray
    ) -> list[int]:
        """Append the tokens that the model was fed with, as far as they are new.

        A step without drafts feeds a decoding request with the token drawn last, and a request in its prompt with
        tokens that are there already.

        :param input_ids: [rows] integer: the token fed last, of each row of the batch.
        :param positions: [rows] integer: its index.
        :param lengths: [rows]: number of tokens that the model has seen, of each row of the batch.
        :returns: slots of vLLM whose tokens are unknown, since steps were missed; they are forgotten.
        """
        seen, known = lengths[edited.places], self._num_tokens[edited.requests]
        is_new = seen == known + 1
        lost: list[int] = edited.requests[seen > known + 1].tolist()
        for slot in lost:
            self.discard(slot)
        if is_new.any():
            tokens = edited.of(input_ids)
            if not is_new.all():
                lengths_there = self.requests.tables.num_tokens.index_select(0, edited.mirror)
                tokens = torch.where(edited.of(positions) == lengths_there, tokens, -1)
            self._append(edited.mirror, tokens)
            self._num_tokens[edited.requests[is_new]] += 1
        return lost

    def catch_up(self, edited: EditedRows, states: Any) -> None:
        """Append what vLLM has appended since the last call, whose number the device alone knows.

        :param states: vLLM's ``RequestState``.
        """
        history = states.all_token_ids.gpu
        place = self.requests.tables.num_tokens.index_select(0, edited.mirror).unsqueeze(1) + self._steps
        is_new = place < states.total_len.gpu.index_select(0, edited.slots).unsqueeze(1)
        tokens = history[edited.slots.unsqueeze(1), place.clamp_(max=history.shape[1] - 1)]
        self._append(edited.mirror, torch.where(is_new, tokens, self._no_token))

    def _append(self, mirror: Tensor, tokens: Tensor) -> None:
        append = self.requests.appender
        if append is not None:  # without the count of free places, which may wait for the device
            append(self.requests.tables, mirror, tokens)
        elif tokens.dim() == 1:
            self.requests.append(mirror, tokens)
        else:
            self.requests.append_verified(mirror, _Tokens(tokens))


class _Tokens(NamedTuple):
    """Several tokens a request, as :meth:`tokendraw.RequestSlots.append_verified` takes them."""

    token_ids: Tensor
