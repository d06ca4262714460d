"""Parameters of slots with memory from the first request on that has any: filters from moments, ids for logprobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tokendraw._torch.tensors import uploaded
from tokendraw.filters.installed import find_filter
from tokendraw.output import PAD_TOKEN_ID
from tokendraw.request_slots.capacity import SlotSizes


class FilterValues:
    """A value for each slot and filter, with memory from the first request on that names the filter."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._num_slots, self._device = num_slots, device
        self._values: dict[str, Tensor] = {}
        """[S] float32 each, by the name of the filter; its ``off`` in slots that do not ask. They never move."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def allocate(self, filters: Sequence[tuple[str, float]]) -> None:
        """Allocate memory for the filters of a request."""
        for name, _ in filters:
            if name not in self._values:
                off = find_filter(name).off
                self._values[name] = torch.full(
                    (self._num_slots,), off, dtype=torch.float32, device=self._device
                )

    def write(self, slot: int, filters: Sequence[tuple[str, float]]) -> None:
        """Write the filters of a request to a clean slot."""
        for name, value in filters:
            self._values[name][slot].fill_(value)

    def clean(self, slot: int, filters: Sequence[tuple[str, float]]) -> None:
        """Remove the filters of a request."""
        self.write(slot, [(name, find_filter(name).off) for name, _ in filters])

    def named(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the values of some filters in each slot, [S] float32 each."""
        return {name: self._values[name] for name in names}

    @property
    def num_bytes(self) -> int:
        """Bytes on the device now."""
        return sum(values.nbytes for values in self._values.values())


class LogprobIds:
    """A list of ids for each slot, with memory from the first request on that asks for any. It never moves then."""

    def __init__(self, sizes: SlotSizes, device: torch.device) -> None:
        self._shape, self._device = (sizes.num_slots, sizes.max_logprob_token_ids), device
        self._table: Tensor | None = None
        """[S, most] int64, -1 behind the last id of a slot."""

    @torch.inference_mode(False)  # inference tensors could not be changed outside of that mode
    def uploaded(self, ids: Sequence[int]) -> Tensor | None:
        """Allocate memory for the ids of a request, and upload them; None without any."""
        if not ids:
            return None
        if self._table is None:
            self._table = torch.full(self._shape, PAD_TOKEN_ID, dtype=torch.int64, device=self._device)
        return uploaded({"ids": (ids, torch.int64)}, self._device)["ids"]

    def write(self, slot: int, ids: Tensor | None) -> None:
        """Write the uploaded ids of a request to a clean slot."""
        if ids is not None and self._table is not None:
            self._table[slot, : len(ids)].copy_(ids)

    def clean(self, slot: int, count: int) -> None:
        """Remove the ids of a request that has so many."""
        if count and self._table is not None:
            self._table[slot, :count].fill_(PAD_TOKEN_ID)

    def first(self, width: int) -> Tensor | None:
        """Return the first ``width`` ids of each slot, [S, width]; None for 0."""
        return self._table[:, :width] if width and self._table is not None else None

    @property
    def num_bytes(self) -> int:
        """Bytes on the device now."""
        return 0 if self._table is None else self._table.nbytes
