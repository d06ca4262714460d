"""A dictionary with a limited number of entries."""

from __future__ import annotations

from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedCache(dict[_K, _V]):
    """A dictionary, emptied when full: entries in use come back soon."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def add(self, key: _K, value: _V) -> _V:
        """Cache a value, and return it."""
        if len(self) >= self.capacity:
            self.clear()
        self[key] = value
        return value
