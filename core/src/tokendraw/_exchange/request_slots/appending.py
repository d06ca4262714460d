"""Appends the tokens of a step to the histories of requests. Nothing here waits for the device.

A step first takes its tokens from rows to slots. From there on each slot works on its own row of every tensor, where
nothing has to be left out: what is not kept adds 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendraw._exchange.request_slots.allocation import State
from tokendraw._exchange.request_slots.sizes import Sizes
from tokendraw._exchange.request_slots.tables import ENDS_BAD_WORD, HAS_BIAS, IS_STOP, ONE_OUTPUT
from tokendraw._exchange.request_slots.workspace import Workspace, workspace

_OCCURS = ~(HAS_BIAS | IS_STOP | ENDS_BAD_WORD)


def append_tokens(state: State, row_index: Tensor, token_ids: Tensor, sizes: Sizes) -> None:
    """Append tokens to the histories of requests.

    Ids outside [0, V), rows whose slot has no request, and tokens beyond M are left out.

    :param row_index: [B] integer, each slot at most once.
    :param token_ids: [B] or [B, K] integer.
    """
    tables, one = state.tables, token_ids.dim() == 1 or token_ids.shape[1] == 1
    w = state.workspace if one else workspace(state.lengths, sizes.max_tokens, token_ids.shape[1])
    none, ids, is_id = w.vectors if token_ids.dim() == 1 else (w.none, w.ids, w.kept)

    slot = row_index.to(torch.int64).clamp(-1, sizes.num_slots)  # -1 is the last one too
    tokens = none.index_put((slot,), token_ids.to(torch.int64))
    torch.clamp(tokens, 0, sizes.vocab_size - 1, out=ids)
    torch.eq(ids, tokens, out=is_id)
    _leave_out_the_full(w, one=one)

    torch.gather(tables.counts, 1, w.ids_of_slots, out=w.counts)
    torch.lt(w.counts.bitwise_and_(_OCCURS), w.kept_of_slots, out=w.new_of_slots)  # kept, and 0
    if not one:
        _leave_out_the_repeated(w)

    ends = w.lengths if one else w.changes_of_slots.cumsum(2).add_(w.lengths - 1).clamp_(min=0)
    torch.minimum(ends, w.last, out=w.places)  # 0 is added where nothing is kept, so wherever there is memory
    torch.mul(w.changes_of_slots, w.ids_of_slots, out=w.added)
    state.tokens.scatter_add_(2, w.places, w.added)
    torch.mul(w.kept_of_slots, ONE_OUTPUT, out=w.counts)
    tables.counts.scatter_add_(1, w.ids_of_slots, w.counts)
    changes = w.changes_of_slots
    w.lengths.add_(changes if one else changes.sum(2, keepdim=True, dtype=torch.int32))


def _leave_out_the_full(w: Workspace, *, one: bool) -> None:
    """Keep no token for which its slot has no room; one without a request has none at all."""
    if one:
        has_room = torch.lt(w.num_tokens, w.limit, out=w.new)
    else:
        has_room = torch.le(w.kept.cumsum(1).add_(w.num_tokens), w.limit, out=w.new)
    w.kept.logical_and_(has_room)


def _leave_out_the_repeated(w: Workspace) -> None:
    """Call the first of several tokens of one id new, and no other."""
    ids, new = w.ids_of_slots, w.new_of_slots
    same = (ids.unsqueeze(2) == ids.unsqueeze(1)) & new.unsqueeze(1)
    new.logical_and_(same.tril_(-1).any(2).logical_not_())
