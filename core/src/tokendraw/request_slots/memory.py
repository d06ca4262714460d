"""Allocates the tensors of the slots, and those of rarely used edits when a request first uses them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.graphs import is_capturing, memory_outside_graphs
from tokendraw._torch.upload import uploaded
from tokendraw.parameters.fields import SLOT_FIELDS
from tokendraw.request_slots.capacity import SlotSizes
from tokendraw.request_slots.tables import STATE_COLUMNS, VALUES_AT_REST, RequestTables, column_of, layout_on

_ALIGNMENT = 16  # elements: Triton compiles another kernel for a pointer that is no multiple of 16 bytes


class ListTable(NamedTuple):
    """A tensor of a rarely used edit."""

    family: str
    """The field of :class:`tokendraw.plugin.EditFacts` that tells of the edit."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    padding: int = 0
    """Value behind the entries of a list."""


def _list_tables(sizes: SlotSizes) -> dict[str, ListTable]:
    """Return the tensors of the families of edits, by field of :class:`tokendraw.plugin.RequestTables`."""
    slots, words, ids = sizes.num_slots, sizes.max_bad_words, torch.int32
    return {
        "bias_ids": ListTable("any_bias", (slots, sizes.max_bias), ids, -1),
        "bias": ListTable("any_bias", (slots, sizes.max_bias), torch.float32),
        "allowed": ListTable("any_allowed", (slots, sizes.num_words), ids),
        "bad_words": ListTable("any_bad_words", (slots, words, sizes.max_bad_word_len), ids, -1),
        "bad_lens": ListTable("any_bad_words", (slots, words), ids),
        "stop_ids": ListTable("any_min_tokens", (slots, sizes.max_stop_ids), ids, -1),
    }


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def _full(table: ListTable, device: torch.device) -> Tensor:
    return torch.full(table.shape, table.padding, dtype=table.dtype, device=device)


@torch.inference_mode(False)
def _unwritten(table: ListTable, device: torch.device) -> Tensor:
    memory = memory_outside_graphs(prod(table.shape) * table.dtype.itemsize, device)
    return memory.view(table.dtype).view(table.shape)


@dataclass(eq=False)
class SlotTensors:
    """The tensors of all slots. The small parameters of a slot are a column of a few blocks, written as a whole."""

    tables: RequestTables
    """Replaced when a family of lists gets its memory; all other tensors are shared."""
    lists: dict[str, ListTable]
    """The tables of rarely used edits."""
    missing: set[str]
    """Families of ``lists`` without memory."""
    sampling: dict[str, Tensor]
    """[S] each, by field of the metadata."""
    blocks: dict[str, Tensor]
    """[parameters, more than S] each, by its name."""
    at_rest: dict[str, Tensor]
    """[parameters] each: the column of a slot without a request."""
    tokens: Tensor
    """[2, S, M] int32: ``history`` and ``distinct``, 0 behind their last entry, so that a step adds to them."""
    lengths: Tensor
    """[3, S + 1] int32: ``num_tokens``, ``num_distinct``, and the capacity: M, or 0 without a request. Slot S stands
    for every slot out of range, and is always empty."""
    unfilled: set[str] = field(default_factory=set)
    """Names of ``lists`` whose memory is still to be filled with padding."""

    def give_memory(self, families: Iterable[str]) -> None:
        """Allocate memory for the lists of some families; if there is too little, nothing has changed.

        During the capture of a CUDA graph the memory stays unwritten, since every replay would write it again: see
        :meth:`fill`.
        """
        families = self.missing.intersection(families)
        if not families:
            return
        lists = {name: table for name, table in self.lists.items() if table.family in families}
        make = _unwritten if is_capturing() else _full
        device = self.tokens.device
        self.tables = replace(self.tables, **{name: make(table, device) for name, table in lists.items()})
        self.missing -= families
        if make is _unwritten:
            self.unfilled.update(lists)

    def fill(self) -> None:
        """Write padding to newly allocated tensors."""
        while self.unfilled:
            name = self.unfilled.pop()
            getattr(self.tables, name).fill_(self.lists[name].padding)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors on the device."""
        lists = [getattr(self.tables, name) for name in self.lists]
        others = (*self.blocks.values(), *self.at_rest.values(), self.tokens, self.tables.counts)
        return sum(tensor.nbytes for tensor in (*lists, *others))


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def allocate(sizes: SlotSizes, device: torch.device) -> SlotTensors:
    """Allocate slots without requests."""
    slots = sizes.num_slots
    width = -(-(slots + 1) // _ALIGNMENT) * _ALIGNMENT
    layout = layout_on(device.type)
    words = uploaded({"words": (array("i", layout.packed(VALUES_AT_REST)), torch.int32)}, device)["words"]
    pieces = zip(layout.sizes, torch.split(words, [*layout.sizes.values()]), strict=True)
    at_rest = {block: column_of(piece, block) for block, piece in pieces}
    blocks = {block: column.unsqueeze(1).repeat(1, width) for block, column in at_rest.items()}
    rows = {  # .data: views would count their changes together
        name: blocks[block][i, :slots].view(layout.dtypes[name]).data
        for block, names in layout.rows.items()
        for i, name in enumerate(names)
    }
    first = layout.rows["words"].index("num_tokens")
    lengths = blocks["words"][first : first + 3, : slots + 1]
    tokens = torch.zeros(2, slots, sizes.max_tokens, dtype=torch.int32, device=device)
    lists, device = _list_tables(sizes), tokens.device  # which has an index, unlike 'cuda'
    absent = {
        name: torch.empty(table.shape[:1] + (0,) * len(table.shape[1:]), dtype=table.dtype, device=device)
        for name, table in lists.items()
    }
    tables = RequestTables(
        history=tokens[0],
        distinct=tokens[1],
        counts=torch.zeros(slots, sizes.vocab_size, dtype=torch.int32, device=device),
        **{name: rows[name] for name in STATE_COLUMNS},
        **absent,
    )
    sampling = {name: rows[name] for name in SLOT_FIELDS}
    missing = {table.family for table in lists.values()}
    return SlotTensors(tables, lists, missing, sampling, blocks, at_rest, tokens, lengths)
