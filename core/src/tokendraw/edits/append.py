"""Appends the tokens of a step to the histories of requests. Nothing here waits for the device.

A step first takes its tokens from rows to slots. From there on each slot works on its own row of every tensor, where
nothing has to be left out: what is not kept adds 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokendraw.edits.tables import OCCURRENCES, ONE_OUTPUT
from tokendraw.errors import InvalidParameterError
from tokendraw.parameters.edits import LARGEST_INT32


class Histories:
    """Appends tokens to ``history`` and ``distinct`` of the slots, and counts their ids."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def __init__(self, tokens: Tensor, lengths: Tensor, counts: Tensor) -> None:
        """Hold the tensors.

        :param tokens: [2, S, M] int32: ``history`` and ``distinct``.
        :param lengths: [3, S + 1] int32: ``num_tokens``, ``num_distinct`` and the capacity.
        """
        self._tokens = tokens
        self._counts = counts
        self._lengths = lengths[:2, :-1].unsqueeze(2)
        self._limit = lengths[2, :-1].unsqueeze(1)
        self._most = torch.full((2, 1, 1), LARGEST_INT32, dtype=torch.int64, device=tokens.device)
        """[2, 1, 1]: the largest token of a history, placeholders included, and the largest id."""
        self._most[1].fill_(counts.shape[1] - 1)
        self._least = torch.zeros_like(self._most)

    def append(self, row_index: Tensor, token_ids: Tensor) -> None:
        """Append the tokens of rows.

        A token without an id, V or more, takes its place in the history and is counted by no id. Left out are negative
        numbers, rows whose slot has no request, and tokens beyond M.

        :param row_index: [B] integer, each slot at most once.
        :param token_ids: [B] or [B, K] integer.
        """
        (_, num_slots, max_tokens), lengths = self._tokens.shape, self._lengths
        columns = (token_ids.unsqueeze(1) if token_ids.dim() == 1 else token_ids).to(torch.int64)
        is_single = columns.shape[1] == 1
        slot = row_index.to(torch.int64).clamp(-1, num_slots)  # -1 is the last one too, that of no request
        tokens = columns.new_full((num_slots + 1, columns.shape[1]), -1).index_put_((slot,), columns)
        tokens = tokens[:num_slots]
        # From here on each slot works on its own row. Of the history and of ids:
        values = tokens.clamp(self._least, self._most)
        changes = values == tokens
        ends = lengths[0] if is_single else changes[0].cumsum(1).add_(lengths[0] - 1)
        changes.logical_and_(ends < self._limit)

        ids, are_new = values[1], changes[1]
        occurrences = self._counts.gather(1, ids).bitwise_and_(OCCURRENCES)
        self._counts.scatter_add_(1, ids, are_new.to(torch.int32).mul_(ONE_OUTPUT))  # new or not
        torch.lt(occurrences, are_new, out=are_new)  # an id, and 0
        if not is_single:  # of several equal ids of a request the first alone is new
            same = (ids.unsqueeze(2) == ids.unsqueeze(1)) & are_new.unsqueeze(1)
            are_new.logical_and_(same.tril_(-1).any(2).logical_not_())

        places = lengths if is_single else changes.cumsum(2).add_(lengths - 1).clamp_(min=0)
        # 0 is added where nothing is kept, so wherever there is memory.
        places = places.to(torch.int64).clamp_(max=max_tokens - 1)
        self._tokens.scatter_add_(2, places, (changes * values).to(torch.int32))
        lengths.add_(changes if is_single else changes.sum(2, keepdim=True, dtype=torch.int32))


class Room:
    """A lower bound of the free places in each request's history.

    A step with slots known to the device alone counts as use by every request, in a single addition.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._used = 0
        self._full_at: dict[int, int] = {}
        """By slot: the value of ``_used`` at which the history is full."""
        self._first_full_at = 0

    def add(self, slot: int, num_tokens: int) -> None:
        full_at = self._used + self._max_tokens - num_tokens
        self._first_full_at = min(self._first_full_at, full_at) if self._full_at else full_at
        self._full_at[slot] = full_at

    def remove(self, slot: int) -> None:
        if self._full_at.pop(slot) == self._first_full_at:
            self._first_full_at = min(self._full_at.values(), default=0)

    def take(self, slots: Sequence[int] | None, width: int) -> bool:
        """Take ``width`` places of each of these requests, or return False: a request may have fewer.

        :param slots: None: only the device knows.
        """
        if not self._full_at:
            return True
        if slots is None:
            if self._used + width > self._first_full_at:
                return False
            self._used += width
            return True
        left = [self._full_at[slot] - width for slot in slots]
        if min(left, default=self._used) < self._used:
            return False
        self._full_at.update(zip(slots, left, strict=True))
        self._first_full_at = min(self._first_full_at, min(left, default=self._first_full_at))
        return True

    def take_exactly(self, num_tokens: Tensor, row_index: Tensor, tokens: Tensor) -> None:
        """Take a place for each token, after reading the lengths of the histories from the device, which waits."""
        most, lengths = self._max_tokens, num_tokens.tolist()
        added: list[int] = (tokens >= 0).unsqueeze(-1).flatten(1).sum(1).tolist()
        rows = [*zip(row_index.tolist(), added, strict=True)]
        for row, (slot, more) in enumerate(rows):
            if slot in self._full_at and lengths[slot] + more > most:
                raise InvalidParameterError(
                    f"'token_ids' of row {row} needs room for {more} in slot {slot}, found {lengths[slot]} tokens of "
                    f"'max_tokens', {most}. Remove the request, or make RequestSlots with a larger max_tokens."
                )
        tokens_of_slot = dict(rows)
        for slot in self._full_at:
            self._full_at[slot] = self._used + most - lengths[slot] - tokens_of_slot.get(slot, 0)
        self._first_full_at = min(self._full_at.values())
