"""The base of the objects held by callers: an operation on a device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch

from tokendraw._torch.untraced import untraced
from tokendraw.backends.description import Operation
from tokendraw.backends.resolution.candidate import Resolution
from tokendraw.calls.call import Call
from tokendraw.calls.dispatch import dispatch
from tokendraw.calls.negotiator import Negotiator

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Provider:
    """A loaded operation. :func:`tokendraw.load` makes one of the class of the operation, with its methods.

    Failures of calls have the consequences that :class:`tokendraw.Sampler` describes.
    """

    _operations: ClassVar[tuple[Operation, ...]]
    """The operations that the object has methods for; ``name`` and ``resolution`` are those of the first."""

    def __init__(self, negotiator: Negotiator) -> None:
        self._negotiator = negotiator

    @property
    def device(self) -> torch.device:
        """Device of all tensors, passed and returned."""
        return self._negotiator.device

    @property
    def name(self) -> str:
        """Name of the chosen plugin."""
        return self._negotiator.select(self._operations[0]).backend.name

    @property
    def resolution(self) -> Resolution:
        """Decisions on every candidate, with the chosen plugin."""
        return self._negotiator.select(self._operations[0]).resolution

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Names of the chosen plugin and its companions, by the operations that were negotiated so far.

        Other ranks that draw the same tokens load exactly these: ``tokendraw.load_sampler(choices)``.
        """
        return self._negotiator.choices()

    @untraced
    def prepare(self, operation: str | None = None) -> None:
        """Negotiate, build and prove the backend now rather than in the first call.

        :param operation: one of several that this object has methods for; None: its own.
        :raises SamplerUnavailableError: the explicit choice cannot be honoured, or nothing is available.
        """
        records = {record.name: record for record in self._operations}
        self._negotiator.select(records[operation or self._operations[0].name])

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
        return f"<tokendraw.{self._operations[0].name} {self.name!r} on {self.device}>"


def method(
    operation: Operation, call: Callable[_P, Call], output: type[_T]
) -> Callable[Concatenate[Any, _P], _T]:
    """Make a provider's method of the function that makes its calls, with the name, signature and docstring of that.

    :param output: class of what the method returns.
    """

    def served(self: Provider, /, *args: _P.args, **options: _P.kwargs) -> _T:
        served: _T = dispatch(self._negotiator, operation, call(*args, **options))
        return served

    served.__name__ = served.__qualname__ = call.__name__
    served.__doc__ = call.__doc__
    stub = inspect.signature(call)
    of_object = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method = untraced(served)
    method.__signature__ = stub.replace(  # type: ignore[attr-defined]
        parameters=[of_object, *stub.parameters.values()], return_annotation=output
    )
    return method
