"""The values of filters from moments of requests in slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tokendraw.filters.installed import find_filter


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
