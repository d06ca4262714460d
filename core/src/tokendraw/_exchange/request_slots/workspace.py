"""Holds what a step computes for each slot, so that torch writes it at once where, and as what, it is used."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Workspace(NamedTuple):
    """The tensors of a step with K tokens a request. Slot S stands for those that there are not."""

    none: Tensor
    """[S + 1, K] int64: -1."""
    ids: Tensor
    """[S + 1, K] int64."""
    changes: Tensor
    """[2, S + 1, K] bool: whether a token is appended, and whether it is the first of its id."""
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
    new: Tensor
    """[S + 1, K]."""
    kept_of_slots: Tensor
    """[S, K]."""
    new_of_slots: Tensor
    """[S, K]."""
    ids_of_slots: Tensor
    """[S, K]."""
    changes_of_slots: Tensor
    """[2, S, K]."""
    vectors: tuple[Tensor, Tensor, Tensor]
    """``none``, ``ids`` and ``kept`` without their last dimension, if K is 1."""

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Those that are no views."""
        return self.none, self.ids, self.changes, self.counts, self.places, self.added, self.last


def workspace(lengths: Tensor, max_tokens: int, width: int) -> Workspace:
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
    ids = empty(rows, width, dtype=torch.int64)
    changes = empty(2, rows, width, dtype=torch.bool)
    kept, new = changes.unbind(0)
    columns = lengths.unsqueeze(2)
    return Workspace(
        none,
        ids,
        changes,
        empty(slots, width, dtype=torch.int32),
        empty(2, slots, width, dtype=torch.int64),
        empty(2, slots, width, dtype=torch.int32),
        torch.full((1,), max_tokens - 1, dtype=torch.int64, device=device),
        columns[0],
        columns[2],
        columns[:2, :slots],
        kept,
        new,
        kept[:slots],
        new[:slots],
        ids[:slots],
        changes[:, :slots],
        (none[:, 0], ids[:, 0], kept[:, 0]) if width == 1 else (none, ids, kept),
    )
