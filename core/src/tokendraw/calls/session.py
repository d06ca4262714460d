"""The state that the operations of one provider share: its device, the facts about plugins, and the counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from tokendraw._torch.forked import reseed_children
from tokendraw.backends.description.operation import Operation
from tokendraw.calls.counting import RowCounts
from tokendraw.calls.negotiation import Negotiation
from tokendraw.calls.routing import Serving
from tokendraw.calls.warnings import warn_of
from tokendraw.errors.exceptions import SamplerUnavailableError


class Session:
    """Negotiates who serves an operation, one thread at a time, and keeps the facts for that."""

    def __init__(
        self,
        device: torch.device,
        need: Any,
        facts: Negotiation | None = None,
        *,
        strict: bool = False,
        debug: bool = False,
    ) -> None:
        """Keep what was negotiated so far.

        :param need: what was settled for all calls.
        :param facts: None: nobody was negotiated, so nobody can be replaced.
        :param strict: raise warnings of decisions instead of giving them.
        :param debug: hold every call against the contract.
        """
        reseed_children()
        self.device = device
        self.need = need
        self.strict = strict
        self.debug = debug
        self.counts = RowCounts()
        self.negotiating = threading.RLock()
        self.facts = facts
        self._when_renegotiated: list[Callable[[Negotiation], None]] = []

    def settle(self, operation: Operation) -> Serving:
        """Negotiate who serves an operation, and warn once a process of what the user should know of that.

        :raises SamplerUnavailableError: nobody does, or not the one that was asked for.
        """
        with self.negotiating:
            if self.facts is None:
                raise SamplerUnavailableError(
                    f"Nobody was negotiated for the operation {operation.name!r}. Use tokendraw.load_sampler."
                )
            facts, serving = self.facts.settle(operation)
            self.replace(facts)
        warn_of(serving.resolution, strict=self.strict, once_for=operation.name)
        return serving

    def replace(self, facts: Negotiation) -> None:
        """Continue with other facts: a plugin that they reject no longer serves any operation."""
        with self.negotiating:
            self.facts = facts
            for told in self._when_renegotiated:
                told(facts)

    def on_other_facts(self, tell: Callable[[Negotiation], None]) -> None:
        """Have ``tell`` called with the facts whenever they are replaced."""
        self._when_renegotiated.append(tell)
