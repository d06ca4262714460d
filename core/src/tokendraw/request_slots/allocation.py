"""Allocates the state of requests: a row of every tensor for each slot, in as few pieces as dtypes allow."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendraw._torch.upload import uploaded
from tokendraw.request_slots.families import Families
from tokendraw.request_slots.parameters import AT_REST, SAMPLING, column_of, layout_on
from tokendraw.request_slots.sizes import Sizes
from tokendraw.request_slots.tables import RequestTables
from tokendraw.request_slots.workspace import Workspace, bounds_of, workspace

_ALIGNMENT = 16  # elements: Triton compiles another kernel for a pointer that is no multiple of 16 bytes
_OF_TABLES = (
    *("num_prompt", "num_tokens", "num_distinct", "repetition", "frequency", "presence"),
    *("num_bias", "is_restricted", "num_stop", "min_tokens", "num_bad"),
)


@dataclass(eq=False)
class State:
    """The tensors of all slots. The small parameters of one slot are a column of a few blocks, and written as such."""

    tables: RequestTables
    """Replaced when a family of lists gets its memory, by others that share all that had some."""
    families: Families
    sampling: dict[str, Tensor]
    """[S] each, by field of the metadata."""
    blocks: dict[str, Tensor]
    """[parameters, more than S] each, by its name."""
    at_rest: dict[str, Tensor]
    """[parameters] each: the column of a slot without a request."""
    tokens: Tensor
    """[2, S, M] int32: ``history`` and ``distinct``, 0 behind what they hold, so that a step may add to it."""
    lengths: Tensor
    """[3, S + 1] int32: ``num_tokens``, ``num_distinct``, and the most tokens: M, or 0 without a request. The last
    slot stands for those that there are not: it is always empty."""
    workspace: Workspace
    """That of a step with one token a request."""

    def give_memory(self, asked: Iterable[str]) -> None:
        """Allocate memory for the lists of some edits.

        :param asked: fields of :class:`tokendraw.plugin.EditFacts`.
        :raises torch.OutOfMemoryError: there is too little memory; nothing has changed.
        """
        self.tables = self.families.extended(self.tables, asked)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors on the device."""
        lists = [getattr(self.tables, name) for lists in self.families.padding.values() for name in lists]
        own = (*self.blocks.values(), *self.at_rest.values(), self.tokens, self.tables.counts)
        return sum(tensor.nbytes for tensor in (*own, *lists, *self.workspace.memory))


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def allocate(sizes: Sizes, device: torch.device) -> State:
    """Allocate slots without requests.

    :raises InvalidParameterError: torch finds no such device here.
    """
    slots = sizes.num_slots
    width = -(-(slots + 1) // _ALIGNMENT) * _ALIGNMENT
    layout = layout_on(device.type)
    words = uploaded({"words": (array("i", layout.packed(AT_REST)), torch.int32)}, device)["words"]
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
        **{name: rows[name] for name in _OF_TABLES},
        **families.absent(),
    )
    sampling = {name: rows[name] for name in SAMPLING}
    bounds = bounds_of(sizes.vocab_size, tokens.device)
    step = workspace(lengths, bounds, sizes.max_tokens, 1)
    return State(tables, families, sampling, blocks, at_rest, tokens, lengths, step)
