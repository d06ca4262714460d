"""Counts the requests in the slots by kind and edits, so that the host need not read the device."""

from __future__ import annotations

from collections import Counter

from tokendraw.parameters.batch_facts import BatchFacts, RowKind
from tokendraw.parameters.edits import EDITS, Edit
from tokendraw.request_slots.request import Request
from tokendraw.request_slots.tables import EditFacts


class Population:
    """The requests in the slots, counted by kind and edits."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        """By slot."""
        self.slots: set[int] = set()
        """Those that have a request."""
        self._kinds: Counter[RowKind] = Counter()
        self._edits: Counter[Edit] = Counter()
        self._facts: BatchFacts | None = None
        self.edits: tuple[Edit, ...] = ()
        """Names of the edits that a request asks for."""
        self.edit_facts = EditFacts.of(self.edits)

    @property
    def facts(self) -> BatchFacts:
        """Facts about a batch of any of the requests."""
        if self._facts is None:
            self._facts = BatchFacts.of_kinds(self._kinds.keys())
        return self._facts

    def add(self, slot: int, request: Request) -> None:
        """Count a request."""
        self.requests[slot] = request
        self.slots.add(slot)
        self._count(request, 1)

    def remove(self, slot: int) -> None:
        """Count a request no more."""
        self.slots.remove(slot)
        self._count(self.requests.pop(slot), -1)

    def _count(self, request: Request, by: int) -> None:
        before = len(self._kinds)
        self._kinds[request.kind] += by
        if not self._kinds[request.kind]:
            del self._kinds[request.kind]
        if len(self._kinds) != before:
            self._facts = None
        for edit in request.edits.names:
            self._edits[edit] += by
        edits = tuple([edit for edit in EDITS if self._edits[edit]])
        if edits != self.edits:
            self.edits, self.edit_facts = edits, EditFacts.of(edits)
