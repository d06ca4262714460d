"""Writes requests, and the tokens that they get, to their slots. Nothing here waits for the device.

What is not to be kept goes to the element behind the last one of a tensor, so that no write depends on a value that the
host would have to know.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tokendraw._exchange.request_slots.allocation import Sizes, State
from tokendraw._exchange.request_slots.tables import ENDS_BAD_WORD, HAS_BIAS, IS_STOP, ONE_OUTPUT

_EDIT_FLAGS = HAS_BIAS | IS_STOP | ENDS_BAD_WORD
_PADDED = ("bias_ids", "stop_ids", "bad_words")
"""Lists that hold -1 behind their entries."""


def write_request(state: State, slot: int, columns: Mapping[str, Tensor]) -> None:
    """Write a request to a clean slot.

    :param columns: those of :func:`request_columns`, on the device.
    """
    for name, block in state.blocks.items():
        block[:, slot].copy_(columns[name])
    if "flagged" in columns:
        state.counts.scatter_(0, columns["flagged"], columns["flags of ids"])
    for name in ("history", "distinct", "bias_ids", "bias", "stop_ids", "bad_words", "bad_lens", "allowed"):
        if name in columns:
            row: Tensor = getattr(state.tables, name)[slot].view(-1)
            row[: len(columns[name])].copy_(columns[name])


def clean_slot(state: State, slot: int, sizes: Sizes) -> None:
    """Take all traces of a request from its slot, by the lists of the ids that it left some at."""
    tables = state.tables
    ids = tables.distinct[slot]
    occurs = torch.arange(sizes.max_tokens, device=ids.device) < tables.num_distinct[slot]
    lists = tables.bias_ids[slot], tables.stop_ids[slot], tables.bad_words[slot, :, -1]
    traces = torch.cat([ids.masked_fill(~occurs, -1), *lists]).to(torch.int64)
    nowhere = sizes.num_slots * sizes.vocab_size
    state.counts.scatter_(0, (traces + slot * sizes.vocab_size).masked_fill_(traces < 0, nowhere), 0)
    for name, block in state.blocks.items():
        block[:, slot].copy_(state.empty[name])
    for name in _PADDED:
        getattr(tables, name)[slot].fill_(-1)
    tables.bad_lens[slot].zero_()


def append_tokens(state: State, row_index: Tensor, token_ids: Tensor, sizes: Sizes) -> None:
    """Append tokens to the histories of requests.

    Ids outside [0, V), rows whose slot has no request, and tokens beyond M are left out.

    :param row_index: [B] integer, each slot at most once.
    :param token_ids: [B, K] integer.
    """
    slots, most, ids = sizes.num_slots, sizes.max_tokens, sizes.vocab_size
    tokens, slot = token_ids.to(torch.int64), row_index.to(torch.int64).clamp(-1, slots)
    is_live = state.is_live[slot]  # -1 is the last element too
    slot = torch.where(is_live, slot, slots)
    lengths = state.lengths.index_select(1, slot)
    first = (slot * most).unsqueeze(1)
    kept = (tokens == tokens.clamp(0, ids - 1)) & is_live.unsqueeze(1)
    place = _places(kept, lengths[0])
    kept &= place < most
    written = tokens.to(torch.int32)
    _write(state.history, kept, first + place, written)

    where = torch.where(kept, tokens + (slot * ids).unsqueeze(1), slots * ids).view(-1)
    new = kept & ((state.counts[where].view_as(kept) & ~_EDIT_FLAGS) == 0)
    if tokens.shape[1] > 1:
        same = (tokens.unsqueeze(2) == tokens.unsqueeze(1)) & new.unsqueeze(1)
        new &= ~same.tril_(-1).any(2)  # the first of several is the new one
    _write(state.distinct, new, first + _places(new, lengths[1]), written)
    state.counts.scatter_add_(0, where, kept.view(-1).to(torch.int32) * ONE_OUTPUT)
    lengths += torch.stack((kept, new)).sum(2, dtype=torch.int32)
    state.lengths.scatter_(1, slot.expand(2, -1), lengths)


def _places(chosen: Tensor, first: Tensor) -> Tensor:
    """Return where in its slot each chosen token of a row goes: one behind the other, from ``first`` on."""
    if chosen.shape[1] == 1:
        return first.unsqueeze(1)
    return chosen.cumsum(1).add_((first - 1).unsqueeze(1))


def _write(flat: Tensor, chosen: Tensor, where: Tensor, tokens: Tensor) -> None:
    flat.scatter_(0, torch.where(chosen, where, flat.shape[0] - 1).view(-1), tokens.view(-1))
