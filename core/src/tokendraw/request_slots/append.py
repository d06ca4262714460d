"""Appends the tokens of a step to the histories of requests. Nothing here waits for the device.

A step first takes its tokens from rows to slots. From there on each slot works on its own row of every tensor, where
nothing has to be left out: what is not kept adds 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw.parameters.edits import MAX_ID
from tokendraw.request_slots.tables import OCCURRENCES, ONE_OUTPUT


class TokenBounds(NamedTuple):
    """Bounds [2, 1, 1] int64 of the tokens of a history, placeholders included, and of ids."""

    least: Tensor
    most: Tensor


class Workspace(NamedTuple):
    """The tensors of a step with K tokens a request, each allocated in the dtype and place of its use.

    Slot S stands for every slot out of range.
    """

    bounds: TokenBounds
    none: Tensor
    """[S + 1, K] int64: -1."""
    values: Tensor
    """[2, S + 1, K] int64: the tokens for the history, in which placeholders keep their numbers, and ids."""
    changes: Tensor
    """[2, S + 1, K] bool: whether a token is appended, and whether it is the first of an id."""
    room: Tensor
    """[S + 1, K] bool: whether a slot has room for a token."""
    counts: Tensor
    """[S, K] int32."""
    indices: Tensor
    """[2, S, K] int64: in history and distinct ids."""
    added: Tensor
    """[2, S, K] int32: there."""
    last: Tensor
    """[1] int64: M - 1."""
    num_tokens: Tensor
    """[S + 1, 1] int32; this and the rest are views."""
    limit: Tensor
    """[S + 1, 1] int32."""
    lengths: Tensor
    """[2, S, 1] int32: ``num_tokens`` and ``num_distinct``."""
    kept: Tensor
    """[S + 1, K]: the first of ``changes``."""
    new_of_slots: Tensor
    """[S, K]: the second of ``changes``."""
    ids_of_slots: Tensor
    """[S, K]: the second of ``values``."""
    values_of_slots: Tensor
    """[2, S, K]."""
    changes_of_slots: Tensor
    """[2, S, K]."""
    vectors: tuple[TokenBounds, Tensor, Tensor, Tensor]
    """``bounds``, ``none``, ``values`` and ``changes`` without their last dimension, if K is 1."""

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Tensors that are no views."""
        masks, numbers = (self.changes, self.room), (self.none, self.values, self.counts, self.indices)
        return *self.bounds, *masks, *numbers, self.added, self.last


def _workspace(lengths: Tensor, bounds: TokenBounds, max_tokens: int, width: int) -> Workspace:
    """Make the workspace of steps with K tokens a request.

    :param lengths: [3, S + 1] int32: ``num_tokens``, ``num_distinct`` and the most tokens.
    """
    rows, device = lengths.shape[1], lengths.device
    slots = rows - 1

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    none = torch.full((rows, width), -1, dtype=torch.int64, device=device)
    values = empty(2, rows, width, dtype=torch.int64)
    changes = empty(2, rows, width, dtype=torch.bool)
    columns = lengths.unsqueeze(2)
    inputs = bounds, none, values, changes
    return Workspace(
        *inputs,
        empty(rows, width, dtype=torch.bool),
        empty(slots, width, dtype=torch.int32),
        empty(2, slots, width, dtype=torch.int64),
        empty(2, slots, width, dtype=torch.int32),
        torch.full((1,), max_tokens - 1, dtype=torch.int64, device=device),
        columns[0],
        columns[2],
        columns[:2, :slots],
        changes[0],
        changes[1, :slots],
        values[1, :slots],
        values[:, :slots],
        changes[:, :slots],
        (
            (TokenBounds(*(bound[..., 0] for bound in bounds)), none[:, 0], values[..., 0], changes[..., 0])
            if width == 1
            else inputs
        ),
    )


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
        most = torch.full((2, 1, 1), MAX_ID, dtype=torch.int64, device=tokens.device)
        most[1].fill_(counts.shape[1] - 1)
        bounds = TokenBounds(torch.zeros_like(most), most)
        self._workspace = _workspace(lengths, bounds, tokens.shape[2], 1)

    @property
    def num_bytes(self) -> int:
        """Bytes of the workspace."""
        return sum(tensor.nbytes for tensor in self._workspace.memory)

    def append(self, row_index: Tensor, token_ids: Tensor) -> None:
        """Append tokens.

        A token without an id, V or more, takes its place in the history and is counted by no id. Left out are negative
        numbers, rows whose slot has no request, and tokens beyond M.

        :param row_index: [B] integer, each slot at most once.
        :param token_ids: [B] or [B, K] integer.
        """
        is_single = token_ids.dim() == 1 or token_ids.shape[1] == 1
        w = self._workspace
        if not is_single:
            w = _workspace(self._lengths, w.bounds, self._tokens.shape[2], token_ids.shape[1])
        bounds, none, values, changes = (
            w.vectors if token_ids.dim() == 1 else (w.bounds, w.none, w.values, w.changes)
        )

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
        torch.minimum(
            ends, w.last, out=w.indices
        )  # 0 is added where nothing is kept, so wherever there is memory
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
