"""Holds a step's intermediate tensors, each allocated in the dtype and place of its use."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw.parameters.edits import LARGEST_ID


class Bounds(NamedTuple):
    """Bounds [2, 1, 1] int64 of the tokens of a history, placeholders included, and of ids."""

    least: Tensor
    most: Tensor


class Workspace(NamedTuple):
    """The tensors of a step with K tokens a request. Slot S stands for those that there are not."""

    bounds: Bounds
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
    places: Tensor
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
    vectors: tuple[Bounds, Tensor, Tensor, Tensor]
    """``bounds``, ``none``, ``values`` and ``changes`` without their last dimension, if K is 1."""

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Tensors with memory of their own."""
        own = self.none, self.values, self.changes, self.room, self.counts, self.places, self.added, self.last
        return *self.bounds, *own


def bounds_of(vocab_size: int, device: torch.device) -> Bounds:
    """Make the bounds of tokens for a vocabulary, without a copy from the host."""
    most = torch.full((2, 1, 1), LARGEST_ID, dtype=torch.int64, device=device)
    most[1].fill_(vocab_size - 1)
    return Bounds(torch.zeros_like(most), most)


def workspace(lengths: Tensor, bounds: Bounds, max_tokens: int, width: int) -> Workspace:
    """Make the workspace of steps with K tokens a request.

    :param lengths: [3, S + 1] int32: ``num_tokens``, ``num_distinct`` and the most tokens.
    :param max_tokens: M.
    :param width: K.
    """
    rows, device = lengths.shape[1], lengths.device
    slots = rows - 1

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    none = torch.full((rows, width), -1, dtype=torch.int64, device=device)
    values = empty(2, rows, width, dtype=torch.int64)
    changes = empty(2, rows, width, dtype=torch.bool)
    columns = lengths.unsqueeze(2)
    given = bounds, none, values, changes
    return Workspace(
        *given,
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
            (Bounds(*(bound[..., 0] for bound in bounds)), none[:, 0], values[..., 0], changes[..., 0])
            if width == 1
            else given
        ),
    )
