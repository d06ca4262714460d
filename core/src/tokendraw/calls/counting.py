"""Counts the rows that each provider has served."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class RowCounts:
    """Counts rows by the name of the provider that served them, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}

    def add(self, name: str, rows: int) -> None:
        """Count rows."""
        if rows:
            with self._lock:
                self._rows[name] = self._rows.get(name, 0) + rows

    def by_name(self) -> dict[str, int]:
        """Return the number of rows that each has served so far."""
        with self._lock:
            return dict(self._rows)

    def restore(self, counts: Mapping[str, int]) -> None:
        """Count from an earlier :meth:`by_name` on."""
        with self._lock:
            self._rows = dict(counts)
