"""The object that callers of :func:`tokendraw.load` hold."""

from __future__ import annotations

from typing import Any

from tokendraw._exchange.operation import Operation
from tokendraw._resolution.candidate import Resolution
from tokendraw._serving.negotiation import Negotiation
from tokendraw._serving.routing import Serving


class Provider:
    """A provider of one operation that was negotiated, built and proven. :func:`tokendraw.load` makes it."""

    def __init__(
        self, operation: Operation, facts: Negotiation, serving: Serving, *, strict: bool, debug: bool
    ) -> None:
        self.device = facts.device
        self._operation = operation
        self._facts, self._serving = facts, serving
        self._strict, self._debug = strict, debug

    @property
    def name(self) -> str:
        """Name of the plugin that was chosen."""
        return self._serving.chosen.name

    @property
    def resolution(self) -> Resolution:
        """Every decision that led to it."""
        return self._serving.resolution

    def __repr__(self) -> str:
        return f"<tokendraw.{self._operation.name} {self.name!r} on {self.device}>"

    def __getattr__(self, method: str) -> Any:
        if method not in self.__dict__["_operation"].methods:
            raise AttributeError(f"{self!r} has no attribute {method!r}")
        return getattr(self._serving.chosen.backend, method)
