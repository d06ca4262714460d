"""Appends the tokens of a step to the histories of requests. Nothing here waits for the device.

A step first takes its tokens from rows to slots. From there on each slot works on its own row of every tensor, where
nothing has to be left out: what is not kept adds 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw.request_slots.allocation import State
from tokendraw.request_slots.sizes import Sizes
from tokendraw.request_slots.tables import ENDS_BAD_WORD, HAS_BIAS, IS_STOP, ONE_OUTPUT
from tokendraw.request_slots.workspace import Workspace, workspace

_OCCURS = ~(HAS_BIAS | IS_STOP | ENDS_BAD_WORD)


def append_tokens(state: State, row_index: Tensor, token_ids: Tensor, sizes: Sizes) -> None:
    """Append tokens to the histories of requests.

    A token without an id, V or more, takes its place in the history and is counted by no id. Left out are negative
    numbers, rows whose slot has no request, and tokens beyond M.

    :param row_index: [B] integer, each slot at most once.
    :param token_ids: [B] or [B, K] integer.
    """
    tables, one = state.tables, token_ids.dim() == 1 or token_ids.shape[1] == 1
    w = state.workspace
    if not one:
        w = workspace(state.lengths, w.bounds, sizes.max_tokens, token_ids.shape[1])
    bounds, none, values, changes = (
        w.vectors if token_ids.dim() == 1 else (w.bounds, w.none, w.values, w.changes)
    )

    slot = row_index.to(torch.int64).clamp(-1, sizes.num_slots)  # -1 is the last one too
    tokens = none.index_put((slot,), token_ids.to(torch.int64))
    torch.clamp(tokens, *bounds, out=values)
    torch.eq(values, tokens, out=changes)
    _leave_out_the_full(w, one=one)

    torch.gather(tables.counts, 1, w.ids_of_slots, out=w.counts)
    earlier = w.counts.bitwise_and(_OCCURS)
    torch.mul(w.new_of_slots, ONE_OUTPUT, out=w.counts)  # an id, new or not
    torch.lt(earlier, w.new_of_slots, out=w.new_of_slots)  # an id, and 0
    if not one:
        _leave_out_the_repeated(w)

    ends = w.lengths if one else w.changes_of_slots.cumsum(2).add_(w.lengths - 1).clamp_(min=0)
    torch.minimum(ends, w.last, out=w.places)  # 0 is added where nothing is kept, so wherever there is memory
    torch.mul(w.changes_of_slots, w.values_of_slots, out=w.added)
    state.tokens.scatter_add_(2, w.places, w.added)
    tables.counts.scatter_add_(1, w.ids_of_slots, w.counts)
    changed = w.changes_of_slots
    w.lengths.add_(changed if one else changed.sum(2, keepdim=True, dtype=torch.int32))


def _leave_out_the_full(w: Workspace, *, one: bool) -> None:
    """Drop tokens beyond the capacity of their slot; a slot without a request has no capacity."""
    if one:
        torch.lt(w.num_tokens, w.limit, out=w.room)
    else:
        torch.le(w.kept.cumsum(1).add_(w.num_tokens), w.limit, out=w.room)
    w.changes.logical_and_(w.room)


def _leave_out_the_repeated(w: Workspace) -> None:
    """Count only the first of several equal ids of a request as new."""
    ids, new = w.ids_of_slots, w.new_of_slots
    same = (ids.unsqueeze(2) == ids.unsqueeze(1)) & new.unsqueeze(1)
    new.logical_and_(same.tril_(-1).any(2).logical_not_())
