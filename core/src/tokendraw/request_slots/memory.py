"""Allocates the tensors of the slots, and those of rarely used edits when a request first uses them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.tensors import is_capturing, memory_outside_graphs, uploaded, uploaded_words
from tokendraw.parameters.fields import SLOT_FIELDS
from tokendraw.request_slots.capacity import SlotSizes
from tokendraw.request_slots.tables import (
    BLOCKS,
    IN_PROMPT,
    STATE_COLUMNS,
    VALUES_AT_REST,
    RequestTables,
    layout_on,
)

_ALIGNMENT = 16  # elements: Triton compiles another kernel for a pointer that is no multiple of 16 bytes


class Parameters:
    """The small parameters of all slots. Those of a slot are a column, written by a single operation."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        """Allocate slots without requests, and one more."""
        width = -(-(num_slots + 1) // _ALIGNMENT) * _ALIGNMENT
        layout = layout_on(device.type)
        sizes = [rows * width * BLOCKS[block].itemsize for block, rows in layout.sizes.items()]
        self.at_rest = uploaded_words([layout.packed(VALUES_AT_REST)], device).view(torch.uint8)
        """[P]: the column of a slot without a request."""
        self.memory = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        """[P * more than S]: the blocks, one behind the other."""
        self.blocks: dict[str, Tensor] = {}
        """[parameters, more than S] each, by its name: views of ``memory``."""
        first, step = array("q"), array("q")
        for (block, rows), size, start in zip(
            layout.sizes.items(), sizes, accumulate(sizes, initial=0), strict=False
        ):
            item = BLOCKS[block].itemsize
            column = self.at_rest[len(first) :][: rows * item].view(BLOCKS[block])
            self.blocks[block] = self.memory[start : start + size].view(BLOCKS[block]).view(rows, width)
            self.blocks[block].copy_(column.unsqueeze(1))
            first.extend(start + row * width * item + byte for row in range(rows) for byte in range(item))
            step.extend([item] * (rows * item))
        places = uploaded({"first": (first, torch.int64), "step": (step, torch.int64)}, device)
        self._first, self._step = places["first"], places["step"]
        """[P] int64: place of each byte of a column in ``memory``, in slot 0, and bytes from there to the next slot."""

    def write(self, slot: int, column: Tensor) -> None:
        """Write the parameters of a slot.

        :param column: [P] uint8 on the device.
        """
        self.memory.index_copy_(0, torch.add(self._first, self._step, alpha=slot), column)

    @property
    def num_words(self) -> int:
        """Words of 32 bits in a column: P / 4."""
        return self.at_rest.shape[0] // 4

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors that are no views."""
        return self.memory, self.at_rest, self._first, self._step


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
        "dry_breakers": ListTable("any_dry", (slots, sizes.max_dry_breakers), ids, -1),
        "thinking_start": ListTable("any_thinking_budget", (slots, sizes.max_thinking_ids), ids, -1),
        "thinking_end": ListTable("any_thinking_budget", (slots, sizes.max_thinking_ids), ids, -1),
    }


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def _full(table: ListTable, device: torch.device) -> Tensor:
    return torch.full(table.shape, table.padding, dtype=table.dtype, device=device)


@torch.inference_mode(False)
def _unwritten(table: ListTable, device: torch.device) -> Tensor:
    memory = memory_outside_graphs(prod(table.shape) * table.dtype.itemsize, device)
    return memory.view(table.dtype).view(table.shape)


class SlotTensors:
    """The tensors of all slots."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def __init__(self, sizes: SlotSizes, device: torch.device) -> None:
        """Allocate slots without requests."""
        slots = sizes.num_slots
        layout, self.parameters = layout_on(device.type), Parameters(slots, device)
        """The small parameters, those of ``tables`` and ``sampling``."""
        blocks = self.parameters.blocks
        rows = {  # .data: views would count their changes together
            name: blocks[block][i, :slots].view(layout.dtypes[name]).data
            for block, names in layout.rows.items()
            for i, name in enumerate(names)
        }
        first = layout.rows["words"].index("num_tokens")
        self.lengths = blocks["words"][first : first + 3, : slots + 1]
        """[3, S + 1] int32: ``num_tokens``, ``num_distinct``, and the capacity: M, or 0 without a request. Slot S
        stands for every slot out of range, and is always empty."""
        self.tokens = torch.zeros(2, slots, sizes.max_tokens, dtype=torch.int32, device=device)
        """[2, S, M]: ``history`` and ``distinct``, 0 behind their last entry, so that a step adds to them."""
        self.device = self.tokens.device  # which has an index, unlike 'cuda'
        self.in_prompt = torch.full((1,), IN_PROMPT, dtype=torch.int32, device=device)
        """[1]: the count of an id that is in the prompt alone."""
        self.sampling = {name: rows[name] for name in SLOT_FIELDS}
        """[S] each, by field of the metadata."""
        self.lists = _list_tables(sizes)
        """The tables of rarely used edits."""
        self.missing = {table.family for table in self.lists.values()}
        """Families of ``lists`` without memory."""
        self.unfilled: set[str] = set()
        """Names of ``lists`` whose memory is still to be filled with padding."""
        absent = {
            name: torch.empty(slots, *[0] * len(table.shape[1:]), dtype=table.dtype, device=self.device)
            for name, table in self.lists.items()
        }
        self.tables = RequestTables(
            history=self.tokens[0],
            distinct=self.tokens[1],
            counts=torch.zeros(slots, sizes.vocab_size, dtype=torch.int32, device=device),
            **{name: rows[name] for name in STATE_COLUMNS},
            **absent,
        )
        """Replaced when a family of lists gets its memory; all other tensors are shared."""

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
        made = {name: make(table, self.device) for name, table in lists.items()}
        self.tables = replace(self.tables, **made)
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
        others = (self.in_prompt, self.tokens, self.tables.counts)
        return sum(tensor.nbytes for tensor in (*self.parameters.tensors, *lists, *others))
