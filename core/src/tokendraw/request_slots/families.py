"""Allocates the lists and masks of rarely used edits when a request first uses them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tokendraw._torch.graphs import is_capturing
from tokendraw._torch.outside_graphs import memory_outside_graphs
from tokendraw.request_slots.sizes import Sizes
from tokendraw.request_slots.tables import RequestTables


class _Layout(NamedTuple):
    """A tensor of a family."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    padding: int
    """Stands behind the entries of a list."""


def _layouts(sizes: Sizes) -> dict[str, dict[str, _Layout]]:
    """Return the tensors of each family of edits, by the field of :class:`tokendraw.plugin.EditFacts`."""
    slots, words = sizes.num_slots, sizes.max_bad_words
    return {
        "any_bias": {
            "bias_ids": _Layout((slots, sizes.max_bias), torch.int32, -1),
            "bias": _Layout((slots, sizes.max_bias), torch.float32, 0),
        },
        "any_allowed": {"allowed": _Layout((slots, sizes.num_words), torch.int32, 0)},
        "any_bad_words": {
            "bad_words": _Layout((slots, words, sizes.max_bad_word_len), torch.int32, -1),
            "bad_lens": _Layout((slots, words), torch.int32, 0),
        },
        "any_min_tokens": {"stop_ids": _Layout((slots, sizes.max_stop_ids), torch.int32, -1)},
    }


class Families:
    """The families of tables without memory, and the tensors still to be filled with padding."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self._device = device
        self.missing = _layouts(sizes)
        """Those without memory."""
        self._unfilled: dict[str, int] = {}
        self.padding = {
            family: {name: own.padding for name, own in tensors.items()}
            for family, tensors in self.missing.items()
        }
        """Stands behind the entries of each tensor of a family."""

    def absent(self) -> dict[str, Tensor]:
        """Return empty tensors in place of lists without memory."""
        return {
            name: torch.empty(own.shape[:1] + (0,) * len(own.shape[1:]), dtype=own.dtype, device=self._device)
            for tensors in self.missing.values()
            for name, own in tensors.items()
        }

    def extended(self, tables: RequestTables, asked: Iterable[str]) -> RequestTables:
        """Allocate memory for families, and return tables with it. The given tables serve until then.

        While a CUDA graph is being captured nothing is written to it, since every replay would: that is left to
        :meth:`fill`.

        :param asked: fields of :class:`tokendraw.plugin.EditFacts`.
        :raises torch.OutOfMemoryError: there is too little memory; nothing has changed.
        """
        wanted = [family for family in asked if family in self.missing]
        if not wanted:
            return tables
        layouts = {name: own for family in wanted for name, own in self.missing[family].items()}
        is_filled = not is_capturing()
        make = _filled if is_filled else _unwritten
        found = replace(tables, **{name: make(own, self._device) for name, own in layouts.items()})
        for family in wanted:
            del self.missing[family]
        if not is_filled:
            self._unfilled |= {name: own.padding for name, own in layouts.items()}
        return found

    def fill(self, tables: RequestTables) -> None:
        """Write padding to newly allocated tensors."""
        while self._unfilled:
            name, padding = self._unfilled.popitem()
            getattr(tables, name).fill_(padding)


@torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
def _filled(layout: _Layout, device: torch.device) -> Tensor:
    return torch.full(layout.shape, layout.padding, dtype=layout.dtype, device=device)


@torch.inference_mode(False)
def _unwritten(layout: _Layout, device: torch.device) -> Tensor:
    memory = memory_outside_graphs(prod(layout.shape) * layout.dtype.itemsize, device)
    return memory.view(layout.dtype).view(layout.shape)
