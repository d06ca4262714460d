"""Demands that a request for a capability that is not advertised is refused, in words, before any call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Never

from tokendraw import operations
from tokendraw.backends.resolution.candidate import Choice
from tokendraw.backends.resolution.decide import decide
from tokendraw.calls.calls import Calls
from tokendraw.calls.routing import BuiltProvider, Serving
from tokendraw.calls.session import Session
from tokendraw.errors.exceptions import SamplerUnavailableError
from tokendraw_testing.kit.property import Ask
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.kit.trial import Violation


class _Tripwire:
    """Stands where the provider would: to reach it is the failure."""

    def __getattr__(self, method: str) -> Callable[..., Never]:
        def reached(*given: object, **options: object) -> Never:
            raise Violation(f"a call beyond the capabilities needs to be refused, found {method!r} called")

        return reached


def refused(subject: OperationSubject, ask: Ask) -> str:
    """Return the words in which the core refuses the request ``ask``.

    :raises Violation: it does not refuse.
    """
    operation, capabilities = operations.get(subject.operation), subject.capabilities
    need = replace(subject.usual_need, **ask.need)
    own = subject.subject
    try:
        resolution = decide([own.candidate], own.host, need, Choice(sampler=own.name), operation=operation)
        if ask.call is None:
            raise Violation(f"{need} needs to be refused, found it granted")
        serving = Serving(
            resolution=resolution,
            chosen=BuiltProvider(own.name, _Tripwire()),
            capabilities=operation.offered(capabilities, need),
        )
        Calls(Session(subject.device, need), operation, serving).make(ask.call(subject))
    except SamplerUnavailableError as error:
        return str(error)
    raise AssertionError("unreachable: the tripwire raises")
