"""Requires that the core refuses an unadvertised capability in words, before any call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Never

from tokendraw import SamplerUnavailableError
from tokendraw.resolution import Choice, decide
from tokendraw.tools import dispatch_call
from tokendraw_testing.kit.property import Refusal
from tokendraw_testing.kit.subject import OperationSubject
from tokendraw_testing.kit.trial import Violation


class _Tripwire:
    """Stands in for the provider: any method call is a violation."""

    def __getattr__(self, method: str) -> Callable[..., Never]:
        def reached(*arguments: object, **options: object) -> Never:
            raise Violation(f"a call beyond the capabilities needs to be refused, found {method!r} called")

        return reached


def require_refusal(subject: OperationSubject, ask: Refusal) -> str:
    """Require that the core refuses a request, and return the reason: the advice of the message is not for the kit.

    :raises Violation: it does not refuse.
    """
    need = replace(subject.usual_need, **ask.need)
    plugin, operation = subject.subject, subject.operation
    try:
        resolution = decide(
            [plugin.candidate], plugin.host, need, Choice(sampler=plugin.name), operation=operation
        )
        if ask.call is None:
            raise Violation(f"{need} needs to be refused, found it granted")
        dispatch_call(
            ask.call(subject),
            _Tripwire(),
            operation=operation,
            resolution=resolution,
            capabilities=subject.capabilities,
            device=subject.device,
            need=need,
        )
    except SamplerUnavailableError as error:
        return str(error).partition(". ")[0] + "."
    raise AssertionError("unreachable: the tripwire raises")


def offers(field: str, entry: object) -> Callable[[Any], bool]:
    """Make the predicate of capabilities with an entry in one of their fields."""
    return lambda capabilities: entry in getattr(capabilities, field)


def require_unadvertised(
    subject: OperationSubject, refusals: Iterable[tuple[Callable[[Any], bool], Refusal]]
) -> str:
    """Require a refusal for each unadvertised capability; return their number, to follow other words."""
    count = 0
    for is_advertised, refusal in refusals:
        if not is_advertised(subject.capabilities):
            require_refusal(subject, refusal)
            count += 1
    return f"; {count} requests beyond the capabilities refused" if count else ""
