"""Allocates the tensors of the slots, and those of rarely used edits when a request first uses them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.graphs import is_capturing
from tokendraw._torch.outside_graphs import memory_outside_graphs
from tokendraw._torch.upload import uploaded
from tokendraw.parameters.fields import SLOT_FIELDS
from tokendraw.request_slots.capacity import SlotSizes
from tokendraw.request_slots.tables import VALUES_AT_REST, RequestTables, column_of, layout_on

_ALIGNMENT = 16  # elements: Triton compiles another kernel for a pointer that is no multiple of 16 bytes
_COLUMNS_OF_TABLES = (
    *("num_prompt", "num_tokens", "num_distinct", "repetition", "frequency", "presence"),
    *("num_bias", "is_restricted", "num_stop", "min_tokens", "num_bad"),
)


class _ListTable(NamedTuple):
    """A tensor of a family."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    padding: int
    """Value behind the entries of a list."""


def _tables_of_families(sizes: SlotSizes) -> dict[str, dict[str, _ListTable]]:
    """Return the tensors of each family of edits, by the field of :class:`tokendraw.plugin.EditFacts`."""
    slots, words = sizes.num_slots, sizes.max_bad_words
    return {
        "any_bias": {
            "bias_ids": _ListTable((slots, sizes.max_bias), torch.int32, -1),
            "bias": _ListTable((slots, sizes.max_bias), torch.float32, 0),
        },
        "any_allowed": {"allowed": _ListTable((slots, sizes.num_words), torch.int32, 0)},
        "any_bad_words": {
            "bad_words": _ListTable((slots, words, sizes.max_bad_word_len), torch.int32, -1),
            "bad_lens": _ListTable((slots, words), torch.int32, 0),
        },
        "any_min_tokens": {"stop_ids": _ListTable((slots, sizes.max_stop_ids), torch.int32, -1)},
    }


class Families:
    """The families of tables without memory, and the tensors still to be filled with padding."""

    def __init__(self, sizes: SlotSizes, device: torch.device) -> None:
        self._device = device
        self.missing = _tables_of_families(sizes)
        """Families without memory."""
        self._unfilled: dict[str, int] = {}
        self.padding = {
            family: {name: table.padding for name, table in tensors.items()}
            for family, tensors in self.missing.items()
        }
        """Value behind the entries of each tensor of a family."""

    def absent(self) -> dict[str, Tensor]:
        """Return empty tensors in place of lists without memory."""
        return {
            name: torch.empty(
                table.shape[:1] + (0,) * len(table.shape[1:]), dtype=table.dtype, device=self._device
            )
            for tensors in self.missing.values()
            for name, table in tensors.items()
        }

    def extend(self, tables: RequestTables, families: Iterable[str]) -> RequestTables:
        """Allocate memory for families, and return tables with it. The given tables serve until then.

        During the capture of a CUDA graph the memory stays unwritten, since every replay would write it again: see
        :meth:`fill`.

        :param families: fields of :class:`tokendraw.plugin.EditFacts`.
        """
        missing = [family for family in families if family in self.missing]
        if not missing:
            return tables
        missing_tables = {name: table for family in missing for name, table in self.missing[family].items()}
        is_filled = not is_capturing()
        make = _full if is_filled else _unwritten
        extended = replace(
            tables, **{name: make(table, self._device) for name, table in missing_tables.items()}
        )
        for family in missing:
            del self.missing[family]
        if not is_filled:
            self._unfilled |= {name: table.padding for name, table in missing_tables.items()}
        return extended

    def fill(self, tables: RequestTables) -> None:
        """Write padding to newly allocated tensors."""
        while self._unfilled:
            name, padding = self._unfilled.popitem()
            getattr(tables, name).fill_(padding)


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def _full(table: _ListTable, device: torch.device) -> Tensor:
    return torch.full(table.shape, table.padding, dtype=table.dtype, device=device)


@torch.inference_mode(False)
def _unwritten(table: _ListTable, device: torch.device) -> Tensor:
    memory = memory_outside_graphs(prod(table.shape) * table.dtype.itemsize, device)
    return memory.view(table.dtype).view(table.shape)


@dataclass(eq=False)
class SlotTensors:
    """The tensors of all slots. The small parameters of a slot are a column of a few blocks, written as a whole."""

    tables: RequestTables
    """Replaced when a family of lists gets its memory; all other tensors are shared."""
    families: Families
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

    def give_memory(self, families: Iterable[str]) -> None:
        """Allocate memory for the lists of some edits.

        :param families: fields of :class:`tokendraw.plugin.EditFacts`.
        """
        self.tables = self.families.extend(self.tables, families)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors on the device."""
        lists = [getattr(self.tables, name) for lists in self.families.padding.values() for name in lists]
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
    families = Families(sizes, tokens.device)  # which has an index, unlike 'cuda'
    tables = RequestTables(
        history=tokens[0],
        distinct=tokens[1],
        counts=torch.zeros(slots, sizes.vocab_size, dtype=torch.int32, device=device),
        **{name: rows[name] for name in _COLUMNS_OF_TABLES},
        **families.absent(),
    )
    sampling = {name: rows[name] for name in SLOT_FIELDS}
    return SlotTensors(tables, families, sampling, blocks, at_rest, tokens, lengths)
