"""Appends the tokens of a step to the histories of requests. Nothing here waits for the device.

A step first takes its tokens from rows to slots. From there on each slot works on its own row of every tensor, where
nothing has to be left out: what is not kept adds 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from tokendraw.edits.tables import OCCURRENCES, ONE_OUTPUT
from tokendraw.errors import InvalidParameterError
from tokendraw.parameters.edits import LARGEST_INT32

TokenBounds: TypeAlias = tuple[Tensor, Tensor]
"""Least and most, [2, 1, 1] int64 each, of the tokens of a history, placeholders included, and of ids."""


class Workspace:
    """The tensors of a step with K tokens a request, each allocated in the dtype and place of its use.

    Slot S stands for every slot out of range.
    """

    def __init__(self, lengths: Tensor, bounds: TokenBounds, max_tokens: int, width: int) -> None:
        """Allocate the tensors for the lengths that :class:`Histories` has, M and K."""
        rows, empty = lengths.shape[1], partial(torch.empty, device=lengths.device)
        full = partial(torch.full, dtype=torch.int64, device=lengths.device)
        slots, columns = rows - 1, lengths.unsqueeze(2)
        self.bounds = bounds
        self.none = full((rows, width), -1)
        """[S + 1, K] int64."""
        self.values = empty(2, rows, width, dtype=torch.int64)
        """[2, S + 1, K]: the tokens for the history, in which placeholders keep their numbers, and ids."""
        self.changes = empty(2, rows, width, dtype=torch.bool)
        """[2, S + 1, K]: whether a token is appended, and whether it is the first of an id."""
        self.room = empty(rows, width, dtype=torch.bool)
        """[S + 1, K]: whether a slot has room for a token."""
        self.counts = empty(slots, width, dtype=torch.int32)
        self.indices = empty(2, slots, width, dtype=torch.int64)
        """[2, S, K]: in history and distinct ids."""
        self.added = empty(2, slots, width, dtype=torch.int32)
        """[2, S, K]: there."""
        self.last = full((1,), max_tokens - 1)
        allocated = [tensor for tensor in vars(self).values() if isinstance(tensor, Tensor)]
        self.num_bytes = sum(tensor.nbytes for tensor in (*bounds, *allocated))
        # The rest are views.
        self.num_tokens, self.limit = columns[0], columns[2]
        """[S + 1, 1] int32 each."""
        self.lengths = columns[:2, :slots]
        """[2, S, 1] int32: ``num_tokens`` and ``num_distinct``."""
        self.kept, self.new_of_slots = self.changes[0], self.changes[1, :slots]
        self.values_of_slots, self.changes_of_slots = self.values[:, :slots], self.changes[:, :slots]
        self.ids_of_slots = self.values[1, :slots]
        self.inputs = bounds, self.none, self.values, self.changes
        if width == 1:
            vectors = bounds[0][..., 0], bounds[1][..., 0]
            self.vector_inputs = vectors, self.none[:, 0], self.values[..., 0], self.changes[..., 0]
            """The inputs without their last dimension."""


class Histories:
    """Appends tokens to ``history`` and ``distinct`` of the slots, and counts their ids."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def __init__(self, tokens: Tensor, lengths: Tensor, counts: Tensor) -> None:
        """Allocate the workspace of steps with a token a request.

        :param tokens: [2, S, M] int32: ``history`` and ``distinct``.
        :param lengths: [3, S + 1] int32: ``num_tokens``, ``num_distinct`` and the capacity.
        """
        self._tokens = tokens
        self._lengths = lengths
        self._counts = counts
        most = torch.full((2, 1, 1), LARGEST_INT32, dtype=torch.int64, device=tokens.device)
        most[1].fill_(counts.shape[1] - 1)
        self._workspace = Workspace(lengths, (torch.zeros_like(most), most), tokens.shape[2], 1)
        self.num_bytes = self._workspace.num_bytes

    def append(self, row_index: Tensor, token_ids: Tensor) -> None:
        """Append the tokens of rows.

        A token without an id, V or more, takes its place in the history and is counted by no id. Left out are negative
        numbers, rows whose slot has no request, and tokens beyond M.

        :param row_index: [B] integer, each slot at most once.
        :param token_ids: [B] or [B, K] integer.
        """
        is_single = token_ids.dim() == 1 or token_ids.shape[1] == 1
        w = self._workspace
        if not is_single:
            w = Workspace(self._lengths, w.bounds, self._tokens.shape[2], token_ids.shape[1])
        bounds, none, values, changes = w.vector_inputs if token_ids.dim() == 1 else w.inputs

        slot = row_index.to(torch.int64).clamp(-1, self._tokens.shape[1])  # -1 is the last one too
        tokens = none.index_put((slot,), token_ids.to(torch.int64))
        torch.clamp(tokens, *bounds, out=values)
        torch.eq(values, tokens, out=changes)
        _drop_beyond_capacity(w, is_single=is_single)

        torch.gather(self._counts, 1, w.ids_of_slots, out=w.counts)
        occurrences = w.counts.bitwise_and(OCCURRENCES)
        torch.mul(w.new_of_slots, ONE_OUTPUT, out=w.counts)  # an id, new or not
        torch.lt(occurrences, w.new_of_slots, out=w.new_of_slots)  # an id, and 0
        if not is_single:
            _drop_repeated(w)

        ends = w.lengths if is_single else w.changes_of_slots.cumsum(2).add_(w.lengths - 1).clamp_(min=0)
        # 0 is added where nothing is kept, so wherever there is memory.
        torch.minimum(ends, w.last, out=w.indices)
        torch.mul(w.changes_of_slots, w.values_of_slots, out=w.added)
        self._tokens.scatter_add_(2, w.indices, w.added)
        self._counts.scatter_add_(1, w.ids_of_slots, w.counts)
        changed = w.changes_of_slots
        w.lengths.add_(changed if is_single else changed.sum(2, keepdim=True, dtype=torch.int32))


def _drop_beyond_capacity(w: Workspace, *, is_single: bool) -> None:
    """Drop tokens beyond the capacity of their slot; a slot without a request has no capacity."""
    if is_single:
        torch.lt(w.num_tokens, w.limit, out=w.room)
    else:
        torch.le(w.kept.cumsum(1).add_(w.num_tokens), w.limit, out=w.room)
    w.changes.logical_and_(w.room)


def _drop_repeated(w: Workspace) -> None:
    """Count only the first of several equal ids of a request as new."""
    ids, new = w.ids_of_slots, w.new_of_slots
    same = (ids.unsqueeze(2) == ids.unsqueeze(1)) & new.unsqueeze(1)
    new.logical_and_(same.tril_(-1).any(2).logical_not_())


class Room:
    """A lower bound of the free places in each request's history.

    The tokens of a step with slots known to the device alone may belong to any request: such a step counts as use by
    every request, in a single addition.
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
