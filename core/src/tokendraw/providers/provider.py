"""The object that callers hold: an operation on one device, with the methods that its record names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description.operation import Operation
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.call import Call
from tokendraw.calls.calls import Calls
from tokendraw.calls.plain_calls import PlainCall
from tokendraw.calls.session import Session
from tokendraw.calls.warming import Warmup
from tokendraw.providers.warmup import warm_up


class Provider:
    """A provider that was negotiated for an operation, built and proven. :func:`tokendraw.load` makes it.

    It has the methods of the operation. Where tokendraw chose by default and a call fails (it raises, or returns what
    is no output), the next best plugin serves that call and, if it can, all that follow; a
    :class:`tokendraw.SamplerFallbackWarning` says so once. The error itself is raised, and nobody is replaced, where
    nobody else can serve the call either, where the user asked for a plugin, while a CUDA graph is captured, and where
    it says nothing against the plugin, as ``torch.OutOfMemoryError``. It is raised as well where the failed plugin may
    have overwritten what it was given: only one that was given copies cannot have, and that is so for the first call of
    each kind, and after such an error.
    """

    def __init__(self, session: Session, operation: Operation, calls: Calls | None = None) -> None:
        self._session = session
        self._operation = operation
        self._calls = calls or Calls(session, operation)
        self._by_operation = {operation.name: self._calls}
        self._methods = methods_of(operation)

    @property
    def device(self) -> torch.device:
        """Device of all tensors that its methods take and return."""
        return self._session.device

    @property
    def name(self) -> str:
        """Name of the plugin that was chosen."""
        return self._calls.serving.chosen.name

    @property
    def resolution(self) -> Resolution:
        """Every decision that led to it."""
        return self._calls.serving.resolution

    @untraced
    def prepare(self, operation: str | None = None) -> None:
        """Negotiate, build and prove the provider now; otherwise the first call does that.

        :param operation: one of several that this object has methods for; None: its own.
        :raises SamplerUnavailableError: nobody does, or not the one that was asked for.
        """
        self._by_operation[operation or self._operation.name].serving  # noqa: B018 (negotiates)

    @untraced
    def stats(self) -> dict[str, int]:
        """Count how many rows each plugin has drawn here, by name; replays of graphs do not count."""
        return self._session.counts.by_name()

    @untraced
    def warmup(self, *arguments: Any, **named: Any) -> float:
        """Make calls of every kind that may come, so that none waits for a kernel to be compiled or loaded.

        :param arguments: those that the operation's ``warm_up`` takes: for logits to draw from those of
            :meth:`tokendraw.Sampler.warmup`, for logits to edit those that docs/logits-processing.md lists. Operations
            without one have nothing to warm up, and take any.
        :param progress: whether a line on stderr shows how far it is; None: if stderr is a terminal.
        :returns: the seconds that it took; 0.0 on a CPU.
        :raises InvalidInputError: a ValueError that names the argument; or a CUDA graph is being captured.
        """
        if self._operation.warm_up is None:
            return 0.0
        progress = named.pop("progress", None)
        warmup: Warmup = self._operation.warm_up(*arguments, **named)
        return warm_up(self._session, [(self._calls, warmup)], progress=progress)

    def __repr__(self) -> str:
        return f"<tokendraw.{self._operation.name} {self.name!r} on {self.device}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        make = self.__dict__.get("_methods", {}).get(name)
        if make is None:
            raise AttributeError(f"{self!r} has no attribute {name!r}")

        @untraced
        def method(*args: Any, **kwargs: Any) -> Any:
            return self._calls.make(make(*args, **kwargs))

        method.__name__ = name
        vars(self)[name] = method
        return method


def methods_of(operation: Operation) -> Mapping[str, Callable[..., Call]]:
    """Look up what makes the calls of a provider's methods, by the method's name."""
    if operation.calls is not None:
        return operation.calls()
    return {name: partial(PlainCall, name) for name in operation.methods}
