"""Writes requests to their slots, and cleans the slots behind them. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tokendraw.request_slots.allocation import State
from tokendraw.request_slots.parameters import column_of
from tokendraw.request_slots.request import Request


def write_request(state: State, slot: int, pieces: Mapping[str, Tensor]) -> None:
    """Write a request to a clean slot.

    :param pieces: those of :class:`PackedRequest`, int32 on the device.
    """
    tables, written = state.tables, dict(pieces)
    for name, block in state.blocks.items():
        block[:, slot].copy_(column_of(written.pop(name), name))
    if "flagged" in written:
        ids, flags = written.pop("flagged"), written.pop("flags")
        tables.counts[slot].scatter_(0, ids.to(torch.int64), flags)
    for name, piece in written.items():
        table: Tensor = getattr(tables, name)
        row = table[slot] if table.dim() == 2 else table[slot].view(-1)
        row[: len(piece)].copy_(piece if piece.dtype == table.dtype else piece.view(table.dtype))


def clean_slot(state: State, slot: int, request: Request) -> None:
    """Remove all traces of a request from its slot, found by the request's lists of ids."""
    tables, edits = state.tables, request.edits
    traces = [tables.distinct[slot]]  # all of it: behind the ids it holds 0, whose count is to be 0 as well
    if edits.bias:
        traces.append(tables.bias_ids[slot, : len(edits.bias)])
    if edits.stop_ids:
        traces.append(tables.stop_ids[slot, : len(edits.stop_ids)])
    if edits.bad_words:
        traces.append(tables.bad_words[slot, : len(edits.bad_words), -1])
    ids = traces[0] if len(traces) == 1 else torch.cat(traces)
    tables.counts[slot].index_fill_(0, ids.to(torch.int64), 0)
    state.tokens[:, slot].zero_()
    for name, block in state.blocks.items():
        block[:, slot].copy_(state.at_rest[name])
    for edit in request.asks:
        for name, padding in state.families.padding.get(edit, {}).items():
            getattr(tables, name)[slot].fill_(padding)
