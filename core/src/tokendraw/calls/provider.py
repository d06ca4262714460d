"""The base of the objects held by callers: an operation on a device."""

from __future__ import annotations

from typing import Any

import torch

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.dispatcher import Dispatcher
from tokendraw.calls.negotiator import Negotiator
from tokendraw.calls.selection import Selection


class Provider:
    """A loaded operation. :func:`tokendraw.load` makes one of the class of the operation, with its methods.

    Failures of calls have the consequences that :class:`tokendraw.Sampler` describes.
    """

    def __init__(
        self, operation: Operation, negotiator: Negotiator, selection: Selection | None = None
    ) -> None:
        """Hold an operation; without a selection it is negotiated at first use."""
        self._negotiator = negotiator
        self._dispatcher = Dispatcher(operation, negotiator, selection)
        self._dispatchers = {operation.name: self._dispatcher}

    @property
    def device(self) -> torch.device:
        """Device of all tensors, passed and returned."""
        return self._negotiator.device

    @property
    def name(self) -> str:
        """Name of the chosen plugin."""
        return self._dispatcher.selection.backend.name

    @property
    def resolution(self) -> Resolution:
        """Decisions on every candidate, with the chosen plugin."""
        return self._dispatcher.selection.resolution

    @untraced
    def prepare(self, operation: str | None = None) -> None:
        """Negotiate, build and prove the backend now rather than in the first call.

        :param operation: one of several that this object has methods for; None: its own.
        :raises SamplerUnavailableError: the explicit choice cannot be honoured, or nothing is available.
        """
        self._dispatchers[operation or self._dispatcher.operation.name].selection  # noqa: B018 (negotiates)

    @untraced
    def stats(self) -> dict[str, int]:
        """Return the number of rows drawn by each plugin here, drafts included.

        Rows that were verified do not count, nor do warmups and replays of graphs.
        """
        return self._negotiator.stats()

    @untraced
    def warmup(self, *arguments: Any, **options: Any) -> float:
        """Return 0.0: the operation has no kernels to compile or load. :class:`tokendraw.Sampler` warms up."""
        return 0.0

    def __repr__(self) -> str:
        return f"<tokendraw.{self._dispatcher.operation.name} {self.name!r} on {self.device}>"
